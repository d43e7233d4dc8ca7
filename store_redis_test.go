package ratelimit_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aed328ba/ratelimit"
	"github.com/aed328ba/ratelimit/ratelimittest"
	"github.com/alicebob/miniredis/v2"
	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// drawMiniPolicy draws a policy, and the unit of time in which miniredis can
// enforce it: it ends a key one millisecond before Redis does, at its TTL and
// not after it. Fixed windows are compared at even milliseconds, where both
// agree.
func drawMiniPolicy(t *rapid.T) (policy *ratelimit.Policy, unit time.Duration) {
	policy = drawPolicy(t)
	if policy.Algorithm() != ratelimit.FixedWindow {
		return policy, time.Microsecond
	}
	for _, l := range policy.Limits() {
		if l.Period < 10*time.Millisecond {
			t.Skip("not at even milliseconds")
		}
	}
	return policy, 2 * time.Millisecond
}

// A miniClock is the clock of a miniredis.
type miniClock struct {
	*miniredis.Miniredis
	now time.Time
}

// set sets the clock. Where that is back, miniredis keeps how long its keys
// live, but Redis keeps until when.
func (c *miniClock) set(to time.Time) {
	c.SetTime(to)
	if to.Before(c.now) {
		for _, name := range c.Keys() {
			c.SetTTL(name, c.TTL(name)+c.now.Sub(to))
		}
	}
	c.now = to
	c.Exists("") // TTLs follow the clock when a database is touched
}

func TestRedisStoreAgreesWithTheModelInEveryNumber(t *testing.T) {
	agreesWithTheModel(t, false)
}

func TestRedisStoreAgreesWithTheModelAlsoWhereTheClockIsSetBack(t *testing.T) {
	agreesWithTheModel(t, true)
}

func agreesWithTheModel(t *testing.T, back bool) {
	start := time.Date(2030, time.May, 1, 0, 0, 0, 0, time.UTC)
	m, client := startMini(t, start)
	clock := &miniClock{m, start}
	rapid.Check(t, func(t *rapid.T) {
		m.FlushAll()
		policy, unit := drawMiniPolicy(t)
		store := ratelimit.NewRedisStore(client, ratelimit.WithDenyCache(0))
		model := newRedisModel(policy)
		keys := []string{"a", "b"}
		names := map[string][]string{}
		for _, key := range keys {
			names[key] = namesInRedis(t, m, store, policy, key)
		}
		forgetExpired := func() {
			for _, key := range keys {
				for i, name := range names[key] {
					if !m.Exists(name) {
						require.True(t, model.expire(key, i, clock.now.UnixMicro()), "%s of %q is gone too early", policy.Limits()[i], key)
					}
				}
			}
		}
		ctx := context.Background()
		var last []ratelimit.Result
		for range rapid.IntRange(1, 40).Draw(t, "calls") {
			step := drawStep(t, last, unit)
			if back && rapid.IntRange(0, 9).Draw(t, "direction") == 0 {
				step = -step
			}
			clock.set(clock.now.Add(step).Truncate(unit))
			forgetExpired()
			key := rapid.SampledFrom(keys).Draw(t, "key")
			cost := rapid.IntRange(1, maxCost(policy)).Draw(t, "cost")
			got := make([]ratelimit.Result, len(policy.Limits()))
			switch rapid.SampledFrom([]string{"take", "take", "take", "take", "peek", "refund", "reset"}).Draw(t, "call") {
			case "take":
				require.NoError(t, store.Take(ctx, policy, key, cost, got))
				require.Equal(t, model.take(key, clock.now.UnixMicro(), int64(cost)), got)
				last = got
			case "peek":
				require.NoError(t, store.Peek(ctx, policy, key, got))
				require.Equal(t, model.peek(key, clock.now.UnixMicro()), got)
				last = got
			case "refund":
				left := drawLeft(t, last)
				require.NoError(t, store.Refund(ctx, policy, key, cost, left))
				for i := range left { // a store elsewhere lets a little more pass as the same window
					if left[i] > 0 {
						left[i] += max(time.Millisecond, unit)
					}
				}
				model.refund(key, clock.now.UnixMicro(), int64(cost), left)
			case "reset":
				require.NoError(t, store.Reset(ctx, policy, key))
				model.reset(key)
			}
			forgetExpired()
		}
	})
}

// namesInRedis returns under which name each limit of a key is kept. It empties
// the database.
func namesInRedis(t *rapid.T, m *miniredis.Miniredis, store ratelimit.Store, policy *ratelimit.Policy, key string) (names []string) {
	require.NoError(t, store.Take(context.Background(), policy, key, 1, make([]ratelimit.Result, len(policy.Limits()))))
	for _, l := range policy.Limits() {
		ms := strconv.FormatInt(period(l).Milliseconds(), 10)
		for _, name := range m.Keys() {
			if _, tail, _ := strings.Cut(name, "}:"); strings.Split(tail, ":")[1] == ms {
				names = append(names, name)
			}
		}
	}
	require.Len(t, names, len(policy.Limits()))
	m.FlushAll()
	return names
}

func TestARealRedisAgreesWithTheModel(t *testing.T) {
	client := startRedis(t).client()
	ctx := context.Background()
	rng := rand.New(rand.NewPCG(1, 2))
	for _, algorithm := range algorithms {
		t.Run(algorithm.String(), func(t *testing.T) {
			for round := range 30 {
				limits := []ratelimit.Limit{ratelimit.Per(1+rng.IntN(4), time.Duration(8+rng.IntN(20))*time.Millisecond), ratelimit.PerMinute(5 + rng.IntN(20))}
				policy := must(ratelimit.NewPolicy("real", algorithm, limits[:1+rng.IntN(2)]...))
				recorder := &timeRecorder{Client: client}
				store := ratelimit.NewRedisStore(recorder, ratelimit.WithDenyCache(0))
				model := newRedisModel(policy)
				id := key("k", round)
				for range 25 {
					cost := 1 + rng.IntN(maxCost(policy))
					got := make([]ratelimit.Result, len(policy.Limits()))
					var want func(now int64) []ratelimit.Result
					switch []string{"take", "take", "take", "take", "take", "peek", "refund", "reset"}[rng.IntN(8)] {
					case "take":
						require.NoError(t, store.Take(ctx, policy, id, cost, got))
						want = func(now int64) []ratelimit.Result { return model.take(id, now, int64(cost)) }
					case "peek":
						require.NoError(t, store.Peek(ctx, policy, id, got))
						want = func(now int64) []ratelimit.Result { return model.peek(id, now) }
					case "refund":
						require.NoError(t, store.Refund(ctx, policy, id, cost, nil))
						want = func(now int64) []ratelimit.Result { model.refund(id, now, int64(cost), nil); return got }
					case "reset":
						require.NoError(t, ratelimit.NewRedisStore(client).Reset(ctx, policy, id))
						model.reset(id)
						continue
					}
					now := recorder.now
					if algorithm == ratelimit.FixedWindow {
						if !recorder.sure {
							break
						}
						now = now / 1000 * 1000
					}
					require.Equal(t, want(now), got, "cost %d", cost)
					if rng.IntN(3) == 0 {
						time.Sleep(time.Duration(rng.IntN(12_000)) * time.Microsecond)
					}
				}
			}
		})
	}
}

// A timeRecorder sends each script together with TIME, in one transaction, in
// which the clock that expires keys stands still.
type timeRecorder struct {
	*redis.Client
	now  int64
	sure bool // whether now is in the millisecond that TTLs were counted in
}

func (r *timeRecorder) Process(ctx context.Context, cmd redis.Cmder) error {
	tx := r.TxPipeline()
	t := tx.Time(ctx)
	reply := tx.Do(ctx, cmd.Args()...)
	after := tx.Time(ctx)
	_, err := tx.Exec(ctx)
	if err != nil {
		return err
	}
	r.now = t.Val().UnixMicro()
	r.sure = r.now%1000 > 300 && r.now/1000 == after.Val().UnixMicro()/1000
	values := reply.Val().([]any)
	if values[0].(int64) != 0 { // the script's own reading
		r.now = values[0].(int64)
	}
	cmd.(interface{ SetVal(any) }).SetVal(values)
	return nil
}

func TestEachDecisionIsOneRoundTripAndFewCalls(t *testing.T) {
	ctx := context.Background()
	one := []ratelimit.Limit{ratelimit.PerHour(1000)}
	three := []ratelimit.Limit{ratelimit.PerMinute(1000), ratelimit.PerHour(1000), ratelimit.PerDay(1000)}
	for _, algorithm := range algorithms {
		for _, limits := range [][]ratelimit.Limit{one, three} {
			t.Run(fmt.Sprintf("%v/%d", algorithm, len(limits)), func(t *testing.T) {
				client := startRedis(t).client()
				l := redisLimiter(ratelimit.WithStore(ratelimit.NewRedisStore(client)), ratelimit.WithAlgorithm(algorithm), ratelimit.WithLimit(limits...))
				_ = must(l.Allow(ctx, "k")) // loads the script, opens the window
				require.NoError(t, client.ConfigResetStat(ctx).Err())
				const n = 20
				for range n {
					require.True(t, must(l.Allow(ctx, "k")).Allowed)
				}
				count := func(command string) int { return calls(t, client, command) }
				assert.Equal(t, n, count("evalsha"), "one round trip")
				assert.Zero(t, count("eval"))
				assert.Zero(t, count(`script|load`))
				k := n * len(limits)
				want := map[ratelimit.Algorithm]map[string]int{
					ratelimit.FixedWindow:          {"incrby": k, "pttl": k, "pexpire": 0, "time": 0, "decrby": 0},
					ratelimit.SlidingWindowCounter: {"time": n, "get": k, "set": k},
					ratelimit.TokenBucket:          {"time": n, "get": k, "set": k},
					ratelimit.SlidingWindowLog:     {"time": n, "lindex": 2 * k, "llen": k, "rpush": k, "pexpire": k, "ltrim": 0},
				}[algorithm]
				for command, n := range want {
					assert.Equal(t, n, count(command), command)
				}
			})
		}
	}
}

func TestKeysInRedisCarryNoTextOfAClientsAndShareASlot(t *testing.T) {
	on(t, func(t *testing.T, client *redis.Client) {
		ctx := context.Background()
		l := redisLimiter(ratelimit.WithStore(ratelimit.NewRedisStore(client, ratelimit.WithPrefix("app:limits"))), ratelimit.WithName("api"), ratelimit.WithLimit(ratelimit.PerSecond(1), ratelimit.PerHour(10)))
		for _, subject := range []string{"user:42", "{user1000}", "a}b{c", "", strings.Repeat("x", 8192), "*?[]", "\x00\r\n"} {
			require.NoError(t, client.FlushAll(ctx).Err())
			_ = must(l.Allow(ctx, subject))
			keys, err := client.Keys(ctx, "*").Result()
			require.NoError(t, err)
			require.Len(t, keys, 2)
			tags := map[string]bool{}
			for _, k := range keys {
				match := regexp.MustCompile(`^app:limits:\{api:([0-9a-f]{32})\}:fw:(1000|3600000)$`).FindStringSubmatch(k)
				require.NotNil(t, match, k)
				tags[match[1]] = true
			}
			assert.Len(t, tags, 1)
			require.NoError(t, l.Reset(ctx, subject))
			assert.Zero(t, client.DBSize(ctx).Val(), "Reset removes both")
		}
	})
}

func TestEveryKeyHasATTLOfAboutItsPeriodAndOneWithoutIsHealed(t *testing.T) {
	on(t, func(t *testing.T, client *redis.Client) {
		ctx := context.Background()
		for _, algorithm := range algorithms {
			require.NoError(t, client.FlushAll(ctx).Err())
			l := redisLimiter(ratelimit.WithStore(ratelimit.NewRedisStore(client)), ratelimit.WithAlgorithm(algorithm), ratelimit.WithLimit(ratelimit.PerMinute(5)))
			for range 7 {
				_ = must(l.Allow(ctx, "k"))
				for _, k := range client.Keys(ctx, "*").Val() {
					ttl := client.PTTL(ctx, k).Val()
					assert.Positive(t, ttl, algorithm)
					assert.LessOrEqual(t, ttl, 2*time.Minute, algorithm)
				}
			}
			k := client.Keys(ctx, "*").Val()[0]
			require.NoError(t, client.Persist(ctx, k).Err())
			switch algorithm {
			case ratelimit.FixedWindow: // the one whose TTL is its window
				r := must(l.Peek(ctx, "k"))
				assert.Positive(t, client.PTTL(ctx, k).Val())
				assert.LessOrEqual(t, r.RetryAfter, time.Minute)
			default: // the others know their times, and renew the TTL
				require.NoError(t, l.Refund(ctx, "k", 1))
				require.True(t, must(l.Allow(ctx, "k")).Allowed)
				assert.Positive(t, client.PTTL(ctx, k).Val(), algorithm)
			}
		}
	})
}

// Found by the oracle, which was told to wait a microsecond longer than it had
// to: the bucket expired when all but a fraction of a request was back.
func TestABucketIsKeptUntilTheLastFractionOfARequestIsBack(t *testing.T) {
	start := time.Date(2030, time.May, 1, 0, 0, 0, 0, time.UTC)
	m, client := startMini(t, start)
	l := redisLimiter(ratelimit.WithStore(ratelimit.NewRedisStore(client, ratelimit.WithDenyCache(0))), ratelimit.WithAlgorithm(ratelimit.TokenBucket),
		ratelimit.WithLimit(ratelimit.Per(3, time.Millisecond).WithBurst(4)))
	ctx := context.Background()
	require.True(t, must(l.AllowN(ctx, "k", 4)).Allowed)
	m.SetTime(start.Add(666 * time.Microsecond))
	require.True(t, must(l.AllowN(ctx, "k", 1)).Allowed, "full again in 1000 us and two thirds")
	m.SetTime(start.Add(1666 * time.Microsecond))
	assert.Equal(t, time.Microsecond, must(l.AllowN(ctx, "k", 4)).RetryAfter)
	m.SetTime(start.Add(1667 * time.Microsecond))
	assert.True(t, must(l.AllowN(ctx, "k", 4)).Allowed)
}

func TestADenialUnderASmallerBurstRefillsNothing(t *testing.T) {
	start := time.Date(2030, time.May, 1, 0, 0, 0, 0, time.UTC)
	_, client := startMini(t, start)
	for name, store := range map[string]ratelimit.Store{
		"memory": ratelimit.NewMemoryStore(ratelimit.WithClock(ratelimittest.NewClock().Now)),
		"redis":  ratelimit.NewRedisStore(client, ratelimit.WithDenyCache(0)),
	} {
		t.Run(name, func(t *testing.T) {
			take := func(burst, cost int) ratelimit.Result {
				var r [1]ratelimit.Result
				policy := must(ratelimit.NewPolicy("n", ratelimit.TokenBucket, ratelimit.PerHour(60).WithBurst(burst)))
				require.NoError(t, store.Take(context.Background(), policy, "key", cost, r[:]))
				return r[0]
			}
			for _, burst := range []int{60, 200} {
				require.True(t, take(burst, burst).Allowed)
				for _, smaller := range []int{1, 1, 40} {
					_ = take(smaller, 1) // of 60 it is denied; 200 are a budget of their own
				}
				r := take(burst, 1)
				assert.False(t, r.Allowed, "of a burst of %d", burst)
				assert.Equal(t, time.Minute, r.RetryAfter)
			}
			r := take(1, 1)
			assert.False(t, r.Allowed)
			assert.Zero(t, r.Remaining, "never below 0")
			assert.Equal(t, time.Hour, r.RetryAfter)
		})
	}
}

func TestACountIsKeptWhereItsTicksInRedisChange(t *testing.T) {
	_, client := startMini(t, time.Date(2030, time.May, 1, 0, 0, 0, 0, time.UTC))
	store := ratelimit.NewRedisStore(client, ratelimit.WithDenyCache(0))
	take := func(requests int) ratelimit.Result {
		var r [1]ratelimit.Result
		policy := must(ratelimit.NewPolicy("n", ratelimit.SlidingWindowCounter, ratelimit.PerDay(requests)))
		require.NoError(t, store.Take(context.Background(), policy, "key", 1, r[:]))
		return r[0]
	}
	for used, requests := range []int{100, 200_000, 100, 200_000_000, 100} { // microseconds, milliseconds, seconds
		assert.Equal(t, requests-used-1, take(requests).Remaining)
	}
}

func TestADeniedRequestConsumesNothingInRedis(t *testing.T) {
	on(t, func(t *testing.T, client *redis.Client) {
		ctx := context.Background()
		for _, algorithm := range algorithms {
			l := redisLimiter(ratelimit.WithStore(ratelimit.NewRedisStore(client, ratelimit.WithDenyCache(0))), ratelimit.WithName(algorithm.String()), ratelimit.WithAlgorithm(algorithm), ratelimit.WithLimit(ratelimit.PerMinute(9), ratelimit.PerHour(10)))
			require.True(t, must(l.AllowN(ctx, "k", 6)).Allowed)
			for range 5 {
				require.False(t, must(l.AllowN(ctx, "k", 8)).Allowed)
			}
			r := must(l.AllowN(ctx, "k", 3))
			assert.True(t, r.Allowed, algorithm)
			assert.Equal(t, 0, r.Remaining)
		}
	})
}

func TestExactlyTheLimitIsAdmittedByManyInstancesWithClocksFarApart(t *testing.T) {
	server := startRedis(t)
	ctx := context.Background()
	const limit, instances, each = 500, 8, 150
	for _, algorithm := range algorithms {
		t.Run(algorithm.String(), func(t *testing.T) {
			var admitted atomic.Int64
			var wg sync.WaitGroup
			for i := range instances {
				skew := time.Duration(i-instances/2) * 7 * time.Minute
				clock := func() time.Time { return time.Now().Add(skew) }
				store := ratelimit.NewRedisStore(server.client(), ratelimit.WithClock(clock))
				l := redisLimiter(ratelimit.WithStore(store), ratelimit.WithName(algorithm.String()), ratelimit.WithAlgorithm(algorithm), ratelimit.WithClock(clock),
					ratelimit.WithLimit(ratelimit.Per(limit, 24*time.Hour)))
				for range 4 {
					wg.Go(func() {
						for range each {
							r, err := l.Allow(ctx, "k")
							if assert.NoError(t, err) && r.Allowed {
								admitted.Add(1)
							}
						}
					})
				}
			}
			wg.Wait()
			assert.EqualValues(t, limit, admitted.Load())
		})
	}
}

func TestALostScriptCacheIsInvisible(t *testing.T) {
	server := startRedis(t)
	for name, client := range map[string]ratelimit.RedisClient{
		"client":              server.client(),
		"autopipeliner":       must(server.client().AutoPipeline()),
		"async autopipeliner": must(server.client().AsyncAutoPipeline()),
	} {
		t.Run(name, func(t *testing.T) {
			if c, ok := client.(interface{ Close() error }); ok {
				defer c.Close()
			}
			ctx := context.Background()
			l := redisLimiter(ratelimit.WithStore(ratelimit.NewRedisStore(client)), ratelimit.WithName(strings.Fields(name)[0]), ratelimit.WithLimit(ratelimit.PerHour(1000)))
			require.NoError(t, server.client().FlushAll(ctx).Err())
			admin := server.client()
			var admitted atomic.Int64
			var wg sync.WaitGroup
			for g := range 64 {
				wg.Go(func() {
					for i := range 20 {
						if g == 0 {
							_ = admin.ScriptFlush(ctx).Err()
						}
						r, err := l.Allow(ctx, "k")
						if assert.NoError(t, err, "call %d", i) && r.Allowed {
							admitted.Add(1)
						}
					}
				})
			}
			wg.Wait()
			assert.EqualValues(t, 1000, admitted.Load())
		})
	}
}

func TestATooEarlyPeriodWorksOnRedisToo(t *testing.T) {
	server := startRedis(t)
	ctx := context.Background()
	for _, period := range []time.Duration{time.Millisecond, 1500 * time.Microsecond, 20 * time.Millisecond, 999 * time.Millisecond} {
		for _, algorithm := range algorithms {
			l := redisLimiter(ratelimit.WithStore(ratelimit.NewRedisStore(server.client())), ratelimit.WithName(strconv.Itoa(int(period))), ratelimit.WithAlgorithm(algorithm), ratelimit.WithLimit(ratelimit.Per(1, period)))
			denied := 0
			for range 50 {
				r := must(l.Allow(ctx, "k"))
				if !r.Allowed {
					denied++
					if period < 100*time.Millisecond {
						time.Sleep(r.RetryAfter)
						require.True(t, must(l.Allow(ctx, "k")).Allowed, "%v %v: admitted after %v", algorithm, period, r.RetryAfter)
					}
				}
			}
			if period > 10*time.Millisecond {
				assert.Positive(t, denied, "%v %v", algorithm, period)
			}
		}
	}
}

func TestAClockThatWasSetBackLocksNobodyOutForMoreThanAPeriod(t *testing.T) {
	start := time.Date(2030, time.May, 1, 12, 0, 0, 0, time.UTC)
	for _, algorithm := range algorithms {
		for _, back := range []time.Duration{time.Second, time.Minute, 10 * time.Hour} {
			t.Run(fmt.Sprintf("%v/%v", algorithm, back), func(t *testing.T) {
				m, client := startMini(t, start)
				ctx := context.Background()
				l := redisLimiter(ratelimit.WithStore(ratelimit.NewRedisStore(client, ratelimit.WithDenyCache(0))), ratelimit.WithAlgorithm(algorithm), ratelimit.WithLimit(ratelimit.PerMinute(5)))
				require.True(t, must(l.AllowN(ctx, "k", 3)).Allowed)
				m.SetTime(start.Add(20 * time.Second))
				require.True(t, must(l.AllowN(ctx, "k", 2)).Allowed)
				now := start.Add(20*time.Second - back)
				m.SetTime(now)
				r := must(l.AllowN(ctx, "k", 5))
				require.False(t, r.Allowed, "what was admitted is not forgotten")
				require.LessOrEqual(t, r.RetryAfter, 2*time.Minute)
				if algorithm != ratelimit.SlidingWindowCounter {
					require.LessOrEqual(t, r.RetryAfter, time.Minute)
				}
				m.SetTime(now.Add(r.RetryAfter))
				assert.True(t, must(l.AllowN(ctx, "k", 5)).Allowed, "after %v", r.RetryAfter)
			})
		}
	}
}

func TestTheDenyCacheSparesRedisAndFindsOutAboutAReset(t *testing.T) {
	client := startRedis(t).client()
	ctx := context.Background()
	clock := ratelimittest.NewClock()
	limiter := func(opts ...ratelimit.Option) *ratelimit.Limiter {
		store := ratelimit.NewRedisStore(client, ratelimit.WithClock(clock.Now))
		return redisLimiter(append([]ratelimit.Option{ratelimit.WithStore(store), ratelimit.WithName("api"), ratelimit.WithLimit(ratelimit.PerHour(5))}, opts...)...)
	}
	l, elsewhere := limiter(), limiter()
	require.True(t, must(l.AllowN(ctx, "k", 5)).Allowed)
	first := must(l.Allow(ctx, "k"))
	require.False(t, first.Allowed)

	require.NoError(t, client.ConfigResetStat(ctx).Err())
	for range 1000 {
		require.False(t, must(l.Allow(ctx, "k")).Allowed)
	}
	assert.Zero(t, calls(t, client, "evalsha"), "a client that hammers costs Redis nothing")
	clock.Advance(300 * time.Millisecond)
	r := must(l.Allow(ctx, "k"))
	assert.Equal(t, first.RetryAfter-300*time.Millisecond, r.RetryAfter, "and the wait goes on running")
	assert.Equal(t, first.ResetAfter-300*time.Millisecond, r.ResetAfter)

	clock.Advance(700 * time.Millisecond)
	for range 10 {
		require.False(t, must(l.Allow(ctx, "k")).Allowed)
	}
	assert.Equal(t, 1, calls(t, client, "evalsha"), "asked again after a second")

	_ = must(l.AllowN(ctx, "k", 2))
	assert.Equal(t, 2, calls(t, client, "evalsha"), "another cost is another question")

	require.NoError(t, elsewhere.Reset(ctx, "k"))
	clock.Advance(time.Second)
	assert.True(t, must(l.Allow(ctx, "k")).Allowed, "a reset on another instance takes effect within a second")

	require.True(t, must(l.AllowN(ctx, "k", 4)).Allowed)
	require.False(t, must(l.Allow(ctx, "k")).Allowed)
	require.NoError(t, l.Refund(ctx, "k", 1))
	assert.True(t, must(l.Allow(ctx, "k")).Allowed, "a refund on this instance takes effect at once")
	require.False(t, must(l.Allow(ctx, "k")).Allowed)
	require.NoError(t, l.Reset(ctx, "k"))
	assert.True(t, must(l.Allow(ctx, "k")).Allowed, "and so does a reset")
}

func TestTheDenyCacheIsKeyedByWhatWasAskedAndBounded(t *testing.T) {
	_, client := startMini(t, time.Now())
	ctx := context.Background()
	store := ratelimit.NewRedisStore(client, ratelimit.WithDenyCache(16))
	take := func(requests, cost int, key string) bool {
		var r [1]ratelimit.Result
		p := must(ratelimit.NewPolicy("p", ratelimit.TokenBucket, ratelimit.PerHour(requests)))
		require.NoError(t, store.Take(ctx, p, key, cost, r[:]))
		return r[0].Allowed
	}
	require.True(t, take(10, 8, "k"))
	require.False(t, take(10, 5, "k"))
	assert.True(t, take(10, 1, "k"), "a cheaper request")
	require.False(t, take(10, 5, "k"))
	assert.True(t, take(100, 5, "k"), "a raised limit")
	for i := range 2000 {
		require.True(t, take(1, 1, key("many", i)))
		require.False(t, take(1, 1, key("many", i)))
	}
	for i := range 2000 {
		require.False(t, take(1, 1, key("many", i)), "whatever was dropped, Redis still knows")
	}
}

func TestAnythingElseUnderAKeysNameIsAnErrorOfThatKeyAlone(t *testing.T) {
	on(t, func(t *testing.T, client *redis.Client) {
		ctx := context.Background()
		for _, algorithm := range algorithms {
			require.NoError(t, client.FlushAll(ctx).Err())
			store := ratelimit.NewRedisStore(client)
			two := must(ratelimit.NewPolicy("p", algorithm, ratelimit.PerMinute(5), ratelimit.PerHour(5)))
			var r [2]ratelimit.Result
			require.NoError(t, store.Take(ctx, two, "k", 1, r[:]))
			var hour string
			for _, k := range client.Keys(ctx, "*").Val() {
				if strings.HasSuffix(k, ":3600000") {
					hour = k
				}
			}
			for _, spoil := range []func() error{
				func() error { return client.SAdd(ctx, hour, "x").Err() },
				func() error { return client.Set(ctx, hour, "garbage", 0).Err() },
			} {
				require.NoError(t, client.Del(ctx, hour).Err())
				require.NoError(t, spoil())
				err := store.Take(ctx, two, "k", 1, r[:])
				require.Error(t, err, algorithm)
				l := redisLimiter(ratelimit.WithStore(ratelimit.NewRedisStore(client)), ratelimit.WithName("p"), ratelimit.WithAlgorithm(algorithm), ratelimit.WithLimit(two.Limits()...))
				for range 20 {
					_, err := l.Allow(ctx, "k")
					require.ErrorIs(t, err, ratelimit.ErrStoreUnavailable)
				}
				_, err = l.Allow(ctx, "another")
				require.NoError(t, err, "%v: the breaker did not open", algorithm)
				require.NoError(t, l.Reset(ctx, "another"))
			}
			require.NoError(t, client.Del(ctx, hour).Err())
			require.NoError(t, store.Peek(ctx, two, "k", r[:]))
			assert.Equal(t, 4, r[0].Remaining, "%v: the minute was not charged meanwhile", algorithm)
		}
	})
}

// A garbledClient answers every command with the same reply.
type garbledClient struct {
	*redis.Client
	reply any
}

func (c garbledClient) Process(_ context.Context, cmd redis.Cmder) error {
	cmd.(interface{ SetVal(any) }).SetVal(c.reply)
	return nil
}

func TestAReplyThatNoScriptGivesIsAFailureNotADecision(t *testing.T) {
	_, client := startMini(t, time.Now())
	for _, reply := range []any{nil, "OK", int64(1), []any{}, []any{int64(1), int64(1), int64(1), int64(1)}, []any{int64(1), "1", int64(1), int64(1), int64(1)}} {
		logger, _ := logTo(t)
		l := must(ratelimit.NewLimiter(ratelimit.WithStore(ratelimit.NewRedisStore(garbledClient{client, reply})), ratelimit.WithLimit(ratelimit.PerMinute(1)),
			ratelimit.WithFailure(ratelimit.FailClosed), ratelimit.WithLogger(logger)))
		r, err := l.Allow(context.Background(), "k")
		assert.ErrorIs(t, err, ratelimit.ErrStoreUnavailable)
		assert.ErrorContains(t, err, "ratelimit: redis: unexpected reply")
		assert.Zero(t, r)
	}
}

func TestWrongRedisOptionsAreErrorsOfNewLimiter(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	for want, store := range map[string]ratelimit.Store{
		`NewRedisStore: the client is nil; use redis.NewClient(&redis.Options{Addr: "localhost:6379"}) or the like`: ratelimit.NewRedisStore(nil),
		"NewRedisStore: the client is nil":                                              ratelimit.NewRedisStore((*redis.Client)(nil)),
		`WithPrefix: the prefix "" has 0 characters; use 1 to 64 (default "ratelimit")`: ratelimit.NewRedisStore(client, ratelimit.WithPrefix("")),
		`WithPrefix: the prefix "a{b}" may only have letters, digits`:                   ratelimit.NewRedisStore(client, ratelimit.WithPrefix("a{b}")),
		"WithDenyCache: -1 keys; use at least 1, or 0 for no cache (default 100000)":    ratelimit.NewRedisStore(client, ratelimit.WithDenyCache(-1), nil),
	} {
		_, err := ratelimit.NewLimiter(ratelimit.WithLimit(ratelimit.PerMinute(1)), ratelimit.WithStore(store))
		assert.ErrorContains(t, err, "ratelimit: "+want)
	}
	for want, o := range map[string]ratelimit.Option{
		"WithTimeout: 0s; use 1ms to 1m (default 100ms)":                                      ratelimit.WithTimeout(0),
		"WithTimeout: -1s; use 1ms to 1m (default 100ms)":                                     ratelimit.WithTimeout(-time.Second),
		"WithTimeout: 1h0m0s; use 1ms to 1m (default 100ms)":                                  ratelimit.WithTimeout(time.Hour),
		"WithFailure: unknown policy FailurePolicy(7); use FailLocal, FailOpen or FailClosed": ratelimit.WithFailure(7),
	} {
		_, err := ratelimit.NewLimiter(ratelimit.WithLimit(ratelimit.PerMinute(1)), o)
		assert.ErrorContains(t, err, "ratelimit: "+want)
	}
}

func TestAClientWithoutContextTimeoutsIsNoticedOnceAtFirstUse(t *testing.T) {
	m, _ := startMini(t, time.Now())
	for name, client := range map[string]interface {
		ratelimit.RedisClient
		Close() error
	}{
		"client": redis.NewClient(&redis.Options{Addr: m.Addr()}),
		"ring":   redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": m.Addr()}}),
	} {
		logger, logged := logTo(t)
		l := redisLimiter(ratelimit.WithLimit(ratelimit.PerMinute(100)), ratelimit.WithStore(ratelimit.NewRedisStore(client)), ratelimit.WithLogger(logger), ratelimit.WithName(name))
		assert.Empty(t, logged(), "no use yet")
		for range 3 {
			_ = must(l.Allow(context.Background(), "k"))
		}
		assert.Equal(t, 1, strings.Count(logged(), "ContextTimeoutEnabled"))
		_ = client.Close()
	}
}

func TestWorksWithEveryKindOfClient(t *testing.T) {
	a, b := startRedis(t), startRedis(t)
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": a.addr, "b": b.addr}, ContextTimeoutEnabled: true})
	defer ring.Close()
	universal := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: []string{a.addr}})
	defer universal.Close()
	pipeliner := must(a.client().AutoPipeline())
	defer pipeliner.Close()
	for name, client := range map[string]ratelimit.RedisClient{"client": a.client(), "ring": ring, "universal": universal, "autopipeliner": pipeliner} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			l := redisLimiter(ratelimit.WithLimit(ratelimit.PerMinute(3), ratelimit.PerHour(100)), ratelimit.WithStore(ratelimit.NewRedisStore(client)), ratelimit.WithName(name))
			for k := range 20 {
				for i := range 5 {
					r, err := l.Allow(ctx, strconv.Itoa(k))
					require.NoError(t, err)
					require.Equal(t, i < 3, r.Allowed)
				}
			}
		})
	}
	keys := func(s *redisServer) int64 { return s.client().DBSize(context.Background()).Val() }
	assert.Positive(t, keys(b), "the ring used both")
}

func TestRulesOfRoutesCountInRedisUnderNamesThatNeedNoBraces(t *testing.T) {
	on(t, func(t *testing.T, client *redis.Client) {
		ctx := context.Background()
		l := redisLimiter(ratelimit.WithStore(ratelimit.NewRedisStore(client)), ratelimit.WithName("api"), ratelimit.WithLimit(ratelimit.PerMinute(9)),
			ratelimit.WithRoutes(map[string]string{"GET /a/:id": "1/minute", "/x{y}/*": "1/minute", "GET /login": "1/minute as login"}))
		r := gin.New()
		r.Use(l.Middleware())
		for _, path := range []string{"/a/:id", "/x{y}/z", "/login"} {
			r.GET(path, func(c *gin.Context) {})
		}
		for _, path := range []string{"/a/1", "/x{y}/z", "/login"} {
			assert.Equal(t, 200, send(r, "GET", path).StatusCode, path)
			assert.Equal(t, 429, send(r, "GET", path).StatusCode, path)
		}
		names := client.Keys(ctx, "*").Val()
		assert.Len(t, names, 3)
		for _, name := range names {
			assert.Regexp(t, `^ratelimit:\{api%20[^{}]+:[0-9a-f]{32}\}:fw:60000$`, name)
		}
		require.NoError(t, l.Reset(ctx, "ip:192.0.2.1"))
		assert.Equal(t, 200, send(r, "GET", "/a/1").StatusCode, "Reset reaches the routes' budgets")
	})
}

func TestTheACLRightsThatTheREADMENamesSuffice(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	rights := regexp.MustCompile("\\*\\*ACL\\.\\*\\* `([^`]+)`").FindSubmatch(readme)
	require.NotNil(t, rights)
	server := startRedis(t)
	ctx := context.Background()
	args := []any{"acl", "setuser", "limiter", "on", ">secret", "~ratelimit:*"}
	for right := range strings.FieldsSeq(string(rights[1])) {
		args = append(args, right)
	}
	require.NoError(t, server.client().Do(ctx, args...).Err())
	client := server.client(func(o *redis.Options) { o.Username, o.Password = "limiter", "secret" })
	for _, algorithm := range algorithms {
		l := redisLimiter(ratelimit.WithStore(ratelimit.NewRedisStore(client, ratelimit.WithDenyCache(0))), ratelimit.WithName(algorithm.String()), ratelimit.WithAlgorithm(algorithm), ratelimit.WithLimit(ratelimit.Per(2, 30*time.Millisecond), ratelimit.PerHour(90)))
		for range 30 {
			_, err := l.Allow(ctx, "k")
			require.NoError(t, err)
			time.Sleep(5 * time.Millisecond)
		}
		_, err := l.Peek(ctx, "k")
		require.NoError(t, err)
		require.NoError(t, l.Refund(ctx, "k", 1))
		require.NoError(t, l.Reset(ctx, "k"))
	}
}

func TestAKeyDeniedFromTheCacheIsAdmittedAfterTheWaitItWasTold(t *testing.T) {
	clock := ratelimittest.NewClock()
	m, client := startMini(t, clock.Now())
	ctx := context.Background()
	store := ratelimit.NewRedisStore(client, ratelimit.WithClock(clock.Now))
	l := redisLimiter(ratelimit.WithStore(store), ratelimit.WithAlgorithm(ratelimit.TokenBucket), ratelimit.WithLimit(ratelimit.Per(1, 500*time.Millisecond)))
	require.True(t, must(l.Allow(ctx, "k")).Allowed)
	wait := must(l.Allow(ctx, "k")).RetryAfter
	require.Positive(t, wait)
	pass := func(d time.Duration) {
		clock.Advance(d)
		m.SetTime(clock.Now())
	}
	pass(wait - 1)
	require.Equal(t, time.Duration(1), must(l.Allow(ctx, "k")).RetryAfter)
	pass(1)
	assert.True(t, must(l.Allow(ctx, "k")).Allowed)
}

func TestARefundToRedisDoesNotReachAnotherWindow(t *testing.T) {
	start := time.Date(2030, time.May, 1, 0, 0, 0, 0, time.UTC)
	ctx := context.Background()
	for _, algorithm := range algorithms {
		t.Run(algorithm.String(), func(t *testing.T) {
			m, client := startMini(t, start)
			store := ratelimit.NewRedisStore(client, ratelimit.WithDenyCache(0))
			policy := must(ratelimit.NewPolicy("n", algorithm, ratelimit.PerMinute(5)))
			take := func(cost int) ratelimit.Result {
				var r [1]ratelimit.Result
				require.NoError(t, store.Take(ctx, policy, "k", cost, r[:]))
				require.True(t, r[0].Allowed)
				return r[0]
			}
			remainingAfterRefund := func(left time.Duration) int {
				var r [1]ratelimit.Result
				require.NoError(t, store.Refund(ctx, policy, "k", 2, []time.Duration{left}))
				require.NoError(t, store.Peek(ctx, policy, "k", r[:]))
				return r[0].Remaining
			}
			decision := take(2)
			assert.Equal(t, 5, remainingAfterRefund(decision.ResetAfter), "given back at once")
			decision = take(2)
			m.SetTime(start.Add(3 * time.Minute))
			take(5)
			assert.Equal(t, 0, remainingAfterRefund(decision.ResetAfter-3*time.Minute), "it has come back by itself")

			if algorithm == ratelimit.FixedWindow || algorithm == ratelimit.SlidingWindowCounter {
				require.NoError(t, store.Reset(ctx, policy, "k"))
				decision = take(2)
				require.NoError(t, store.Reset(ctx, policy, "k"))
				m.SetTime(start.Add(3*time.Minute + 30*time.Second))
				take(5)
				assert.Equal(t, 0, remainingAfterRefund(decision.ResetAfter-30*time.Second), "the window is one that was opened since")
			}
		})
	}
}

func TestTheNumberOfRequestsMayChangeInRedisToo(t *testing.T) {
	_, client := startMini(t, time.Date(2030, time.May, 1, 0, 0, 0, 0, time.UTC))
	ctx := context.Background()
	store := ratelimit.NewRedisStore(client, ratelimit.WithDenyCache(0))
	take := func(algorithm ratelimit.Algorithm, requests, cost int) ratelimit.Result {
		var r [1]ratelimit.Result
		require.NoError(t, store.Take(ctx, must(ratelimit.NewPolicy("n", algorithm, ratelimit.PerMinute(requests))), "key", cost, r[:]))
		return r[0]
	}
	for _, algorithm := range algorithms {
		require.True(t, take(algorithm, 10, 7).Allowed)
		lowered := take(algorithm, 3, 1)
		assert.False(t, lowered.Allowed, algorithm)
		assert.Zero(t, lowered.Remaining, "never below 0")
		assert.LessOrEqual(t, lowered.RetryAfter, 2*time.Minute)
		assert.True(t, take(algorithm, 100, 1).Allowed, algorithm)
		require.NoError(t, client.FlushAll(ctx).Err())
	}
	// A bucket of 7 a minute keeps sevenths of a microsecond, which are rounded
	// up where it becomes one of 3: 8571428 4/7 us.
	require.True(t, take(ratelimit.TokenBucket, 7, 1).Allowed)
	assert.Equal(t, 28_571_429*time.Microsecond, take(ratelimit.TokenBucket, 3, 1).ResetAfter)
}
