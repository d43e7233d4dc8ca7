package ratelimit_test

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aed328ba/ratelimit"
	"github.com/aed328ba/ratelimit/ratelimittest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// drawPolicy draws limits of different periods, small enough that boundaries
// are met often.
func drawPolicy(t *rapid.T) *ratelimit.Policy {
	algorithm := rapid.SampledFrom(algorithms).Draw(t, "algorithm")
	periods := rapid.SliceOfNDistinct(rapid.SampledFrom([]time.Duration{
		time.Millisecond, 7 * time.Millisecond, 1500 * time.Microsecond, 100 * time.Millisecond, time.Second, time.Minute, 24 * time.Hour,
	}), 1, 3, func(d time.Duration) time.Duration { return (d + time.Millisecond - 1).Truncate(time.Millisecond) }).Draw(t, "periods")
	var limits []ratelimit.Limit
	for _, p := range periods {
		l := ratelimit.Per(rapid.IntRange(1, 9).Draw(t, "requests"), p)
		if algorithm == ratelimit.TokenBucket && rapid.Bool().Draw(t, "has burst") {
			l = l.WithBurst(rapid.IntRange(1, 12).Draw(t, "burst"))
		}
		limits = append(limits, l)
	}
	p, err := ratelimit.NewPolicy("test", algorithm, limits...)
	require.NoError(t, err)
	return p
}

// maxCost is the largest cost that every limit of p could admit.
func maxCost(p *ratelimit.Policy) int {
	most := 1 << 30
	for _, l := range p.Limits() {
		if n := l.Burst; p.Algorithm() == ratelimit.TokenBucket && n > 0 {
			most = min(most, n)
		} else {
			most = min(most, l.Requests)
		}
	}
	return most
}

// drawStep draws how far time moves on: often to where something happens.
func drawStep(t *rapid.T, last []ratelimit.Result, unit time.Duration) time.Duration {
	steps := []time.Duration{0, unit, time.Millisecond, 333 * time.Millisecond, time.Second, time.Hour}
	for _, r := range last {
		for _, d := range []time.Duration{r.RetryAfter, r.ResetAfter, r.Limit.Period} {
			steps = append(steps, d, max(0, d-unit), d/2/unit*unit)
		}
	}
	return rapid.SampledFrom(steps).Draw(t, "step")
}

// drawLeft draws what is left of the decision that a refund is of, or nil.
func drawLeft(t *rapid.T, last []ratelimit.Result) (left []time.Duration) {
	if last != nil && rapid.Bool().Draw(t, "of a decision") {
		elapsed := rapid.SampledFrom([]time.Duration{0, time.Nanosecond, time.Second}).Draw(t, "elapsed")
		for _, r := range last {
			left = append(left, r.ResetAfter-elapsed)
		}
	}
	return left
}

func TestMemoryStoreAgreesWithTheModelInEveryNumber(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		policy := drawPolicy(t)
		clock := ratelimittest.NewClock()
		start := clock.Now()
		store := ratelimit.NewMemoryStore(ratelimit.WithClock(clock.Now))
		model := newModel(policy, time.Nanosecond)
		ctx := context.Background()
		var last []ratelimit.Result

		for range rapid.IntRange(1, 60).Draw(t, "calls") {
			if step := drawStep(t, last, time.Nanosecond); rapid.IntRange(0, 19).Draw(t, "direction") == 0 {
				clock.Advance(-step)
			} else {
				clock.Advance(step)
			}
			now := int64(clock.Now().Sub(start))
			key := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "key")
			cost := rapid.IntRange(1, maxCost(policy)).Draw(t, "cost")
			got := make([]ratelimit.Result, len(policy.Limits()))
			switch rapid.SampledFrom([]string{"take", "take", "take", "take", "peek", "refund", "reset"}).Draw(t, "call") {
			case "take":
				require.NoError(t, store.Take(ctx, policy, key, cost, got))
				require.Equal(t, model.take(key, now, int64(cost)), got)
				last = got
			case "peek":
				require.NoError(t, store.Peek(ctx, policy, key, got))
				require.Equal(t, model.peek(key, now), got)
				last = got
			case "refund":
				left := drawLeft(t, last)
				require.NoError(t, store.Refund(ctx, policy, key, cost, left))
				model.refund(key, now, int64(cost), left)
			case "reset":
				require.NoError(t, store.Reset(ctx, policy, key))
				model.reset(key)
			}
		}
	})
}

func TestExactlyTheLimitIsAdmittedUnderAnyConcurrency(t *testing.T) {
	const goroutines, each, limit = 64, 200, 1000
	for _, algorithm := range algorithms {
		t.Run(algorithm.String(), func(t *testing.T) {
			// A table of a few keys, so that sweeping and eviction run beside.
			clock := ratelimittest.NewClock()
			store := ratelimit.NewMemoryStore(ratelimit.WithMaxKeys(4), ratelimit.WithClock(clock.Now))
			hot := must(ratelimit.NewLimiter(ratelimit.WithStore(store), ratelimit.WithName("hot"), ratelimit.WithAlgorithm(algorithm), ratelimit.WithLimit(ratelimit.PerHour(limit))))
			noise := must(ratelimit.NewLimiter(ratelimit.WithStore(store), ratelimit.WithName("noise"), ratelimit.WithAlgorithm(algorithm), ratelimit.WithLimit(ratelimit.Per(limit, 10*time.Millisecond))))
			// The first requests of the hot key take it away from the limit of
			// what is dropped first.
			ctx := context.Background()
			var admitted atomic.Int64
			for range 100 {
				if must(hot.Allow(ctx, "hot")).Allowed {
					admitted.Add(1)
				}
			}
			var wg sync.WaitGroup
			for g := range goroutines {
				wg.Go(func() {
					for i := range each {
						if must(hot.Allow(ctx, "hot")).Allowed {
							admitted.Add(1)
						}
						_ = must(noise.Allow(ctx, strconv.Itoa(g*each+i)))
						if i%16 == 0 {
							clock.Advance(time.Millisecond)
						}
					}
				})
			}
			wg.Wait()
			want := int64(limit)
			if algorithm == ratelimit.TokenBucket { // and what was refilled meanwhile: 1 each 3.6 s
				elapsed := clock.Now().Sub(ratelimittest.NewClock().Now())
				want += int64(elapsed / (3600 * time.Millisecond))
			}
			assert.Equal(t, want, admitted.Load())
			assert.LessOrEqual(t, store.Len(), 4)
		})
	}
}

func TestTheStoreNeverHoldsMoreThanMaxKeys(t *testing.T) {
	for _, maxKeys := range []int{1, 2, 10, 100, 1000, 10_000} {
		store := ratelimit.NewMemoryStore(ratelimit.WithMaxKeys(maxKeys))
		l := must(ratelimit.NewLimiter(ratelimit.WithStore(store), ratelimit.WithLimit(ratelimit.PerHour(3))))
		for i := range maxKeys {
			_ = must(l.Allow(context.Background(), strconv.Itoa(i)))
		}
		assert.Equal(t, maxKeys, store.Len(), "there is room for all of maxKeys")
		for i := range 3 * maxKeys {
			_ = must(l.Allow(context.Background(), "more"+strconv.Itoa(i)))
			require.LessOrEqual(t, store.Len(), maxKeys)
		}
	}
}

func TestWhenFullADeniedClientStaysDenied(t *testing.T) {
	for _, algorithm := range algorithms {
		for _, limit := range []int{1, 5} { // at 1, each new key is denied at once too
			t.Run(fmt.Sprintf("%v/%d", algorithm, limit), func(t *testing.T) {
				clock := ratelimittest.NewClock()
				store := ratelimit.NewMemoryStore(ratelimit.WithMaxKeys(1000), ratelimit.WithClock(clock.Now))
				l := must(ratelimit.NewLimiter(ratelimit.WithStore(store), ratelimit.WithAlgorithm(algorithm), ratelimit.WithLimit(ratelimit.PerHour(limit))))
				ctx := context.Background()
				for range limit {
					require.True(t, must(l.Allow(ctx, "attacker")).Allowed)
				}
				for i := range 20_000 {
					_ = must(l.Allow(ctx, "decoy"+strconv.Itoa(i)))
				}
				assert.False(t, must(l.Allow(ctx, "attacker")).Allowed)
				assert.LessOrEqual(t, store.Len(), 1000)
			})
		}
	}
}

func TestWhenFullAClientDeniedALargeCostStaysDenied(t *testing.T) {
	for _, algorithm := range algorithms {
		t.Run(algorithm.String(), func(t *testing.T) {
			clock := ratelimittest.NewClock()
			store := ratelimit.NewMemoryStore(ratelimit.WithMaxKeys(1000), ratelimit.WithClock(clock.Now))
			l := must(ratelimit.NewLimiter(ratelimit.WithStore(store), ratelimit.WithAlgorithm(algorithm), ratelimit.WithLimit(ratelimit.PerHour(100))))
			ctx := context.Background()
			exhaust := func(key string) {
				for must(l.AllowN(ctx, key, 30)).Allowed {
				}
				_ = must(l.Allow(ctx, key)) // does not make it forget the 30
			}
			exhaust("attacker")
			for i := range 5000 {
				exhaust("decoy" + strconv.Itoa(i))
			}
			assert.False(t, must(l.AllowN(ctx, "attacker", 30)).Allowed)
			clock.Advance(3 * time.Hour)
			assert.True(t, must(l.AllowN(ctx, "attacker", 30)).Allowed)
			assert.True(t, must(l.AllowN(ctx, "newcomer", 30)).Allowed)
		})
	}
}

func TestANewKeyIsDeniedWhileTheStoreIsFullOfDeniedOnesAndAdmittedWhenTheFirstIsDone(t *testing.T) {
	clock := ratelimittest.NewClock()
	store := ratelimit.NewMemoryStore(ratelimit.WithMaxKeys(200), ratelimit.WithClock(clock.Now))
	l := must(ratelimit.NewLimiter(ratelimit.WithStore(store), ratelimit.WithLimit(ratelimit.PerHour(1))))
	ctx := context.Background()
	for i := range 200 {
		require.True(t, must(l.Allow(ctx, strconv.Itoa(i))).Allowed)
		clock.Advance(time.Second)
	}
	r := must(l.Allow(ctx, "new"))
	assert.Equal(t, ratelimit.Result{Limit: ratelimit.PerHour(1), RetryAfter: time.Hour - 200*time.Second, ResetAfter: time.Hour - 200*time.Second}, r)

	clock.Advance(r.RetryAfter - 1)
	assert.False(t, must(l.Allow(ctx, "new")).Allowed)
	clock.Advance(1)
	assert.True(t, must(l.Allow(ctx, "new")).Allowed)
}

func TestANewKeyOfSeveralLimitsGetsInWhereEnoughOfTheDeniedAreDone(t *testing.T) {
	clock := ratelimittest.NewClock()
	store := ratelimit.NewMemoryStore(ratelimit.WithMaxKeys(200), ratelimit.WithClock(clock.Now))
	l := must(ratelimit.NewLimiter(ratelimit.WithStore(store), ratelimit.WithLimit(ratelimit.PerHour(1), ratelimit.PerDay(1))))
	ctx := context.Background()
	for i := range 100 {
		require.True(t, must(l.Allow(ctx, strconv.Itoa(i))).Allowed)
		clock.Advance(time.Second)
	}
	for i := range 20 { // each takes the hours of two of the old, in whatever shard they are
		waits := 0
		for !must(l.Allow(ctx, "new"+strconv.Itoa(i))).Allowed {
			waits++
			clock.Advance(must(l.Allow(ctx, "new"+strconv.Itoa(i))).RetryAfter)
		}
		require.Positive(t, waits)
		require.LessOrEqual(t, waits, 2, "one for each limit")
		require.LessOrEqual(t, store.Len(), 200)
	}
	assert.False(t, must(l.Allow(ctx, "0")).Allowed, "whose day is not over")
}

func TestWhenFullExpiredKeysGoFirstThenThoseFurthestFromTheirLimit(t *testing.T) {
	for _, algorithm := range algorithms {
		t.Run(algorithm.String(), func(t *testing.T) {
			clock := ratelimittest.NewClock()
			store := ratelimit.NewMemoryStore(ratelimit.WithMaxKeys(3), ratelimit.WithClock(clock.Now))
			l := must(ratelimit.NewLimiter(ratelimit.WithStore(store), ratelimit.WithAlgorithm(algorithm), ratelimit.WithLimit(ratelimit.PerMinute(10))))
			ctx := context.Background()
			use := func(key string, n int) int { return must(l.AllowN(ctx, key, n)).Remaining }
			use("expired", 9)
			clock.Advance(2 * time.Minute)
			use("little", 2)
			use("much", 8)

			use("new", 5) // takes the place of expired
			assert.Equal(t, 7, use("little", 1))
			assert.Equal(t, 1, use("much", 1))
			assert.Equal(t, 4, use("new", 1))

			use("newer", 9) // takes the place of little
			assert.Equal(t, 0, use("much", 1))
			assert.Equal(t, 3, use("new", 1))
			assert.Equal(t, 0, use("newer", 1))
		})
	}
}

func TestMemoryComesBackAfterAMillionKeysExpired(t *testing.T) {
	if testing.Short() {
		t.Skip("a million keys take a second; left out by -short")
	}
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	clock := ratelimittest.NewClock()
	empty := heap()
	store := ratelimit.NewMemoryStore(ratelimit.WithClock(clock.Now))
	l := must(ratelimit.NewLimiter(ratelimit.WithStore(store), ratelimit.WithLimit(ratelimit.PerMinute(10))))
	ctx := context.Background()
	for i := range 1_000_000 {
		_, _ = l.Allow(ctx, "ip:10."+strconv.Itoa(i))
	}
	full := heap()
	clock.Advance(time.Hour)
	for range 400_000 { // one busy key is enough
		_, _ = l.Allow(ctx, "busy")
	}
	assert.Equal(t, 1, store.Len())
	assert.Less(t, heap()-empty, (full-empty)/50)
	runtime.KeepAlive(store)
}

func TestNeighboursInOneStoreNeverShareABudget(t *testing.T) {
	ctx := context.Background()
	store := ratelimit.NewMemoryStore()
	exhaust := func(p *ratelimit.Policy) {
		r := make([]ratelimit.Result, len(p.Limits()))
		require.NoError(t, store.Take(ctx, p, "key", 5, r))
		require.True(t, r[0].Allowed)
		require.NoError(t, store.Take(ctx, p, "key", 1, r))
		require.False(t, r[0].Allowed)
	}
	// Each has its full quota, whatever the ones before it used.
	for _, name := range []string{"a", "b", "ab"} {
		for _, algorithm := range algorithms {
			for _, period := range []time.Duration{time.Minute, time.Hour} {
				exhaust(must(ratelimit.NewPolicy(name, algorithm, ratelimit.Per(5, period))))
			}
		}
	}
}

func TestTheNumberOfRequestsMayChangeWhileABudgetIsInUse(t *testing.T) {
	for _, algorithm := range algorithms {
		t.Run(algorithm.String(), func(t *testing.T) {
			ctx := context.Background()
			clock := ratelimittest.NewClock()
			store := ratelimit.NewMemoryStore(ratelimit.WithClock(clock.Now))
			take := func(requests, cost int) ratelimit.Result {
				var r [1]ratelimit.Result
				require.NoError(t, store.Take(ctx, must(ratelimit.NewPolicy("n", algorithm, ratelimit.PerMinute(requests))), "key", cost, r[:]))
				return r[0]
			}
			require.True(t, take(10, 7).Allowed)
			lowered := take(3, 1)
			assert.False(t, lowered.Allowed)
			assert.Zero(t, lowered.Remaining, "never below 0")
			assert.Positive(t, lowered.RetryAfter)
			assert.LessOrEqual(t, lowered.RetryAfter, 2*time.Minute)
			raised := take(100, 1)
			assert.True(t, raised.Allowed)
			assert.GreaterOrEqual(t, raised.Remaining, 29)
		})
	}
}

func TestAResetMakesRoomForAnotherKey(t *testing.T) {
	l, _ := limited(t, ratelimit.WithStore(ratelimit.NewMemoryStore(ratelimit.WithMaxKeys(1))), ratelimit.WithLimit(ratelimit.PerHour(1)))
	ctx := context.Background()
	require.True(t, must(l.Allow(ctx, "a")).Allowed)
	require.False(t, must(l.Allow(ctx, "b")).Allowed, "full of a, who is denied")
	require.NoError(t, l.Reset(ctx, "a"))
	assert.True(t, must(l.Allow(ctx, "b")).Allowed)
}

func TestAKeyOfSeveralLimitsTakesNoPlaceOfItsOwn(t *testing.T) {
	clock := ratelimittest.NewClock()
	store := ratelimit.NewMemoryStore(ratelimit.WithMaxKeys(3), ratelimit.WithClock(clock.Now))
	l := must(ratelimit.NewLimiter(ratelimit.WithStore(store), ratelimit.WithLimit(ratelimit.PerMinute(3), ratelimit.PerHour(3), ratelimit.PerDay(3))))
	ctx := context.Background()
	for _, key := range []string{"a", "b", "c"} { // each takes the place of the one before
		for range 2 {
			require.True(t, must(l.Allow(ctx, key)).Allowed)
			require.Equal(t, 3, store.Len())
		}
	}
	assert.Equal(t, 1, must(l.Peek(ctx, "c")).Remaining)
}
