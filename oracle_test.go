package ratelimit_test

import (
	"context"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aed328ba/ratelimit"
	"github.com/aed328ba/ratelimit/ratelimittest"
	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// An oracle knows nothing of how requests are counted. It keeps every request
// that was admitted, and judges what the documentation of [ratelimit.Algorithm]
// promises: how many there may be in any window.
//
// `go test -run Oracle -rapid.checks=100000 .` asks it for as long as you like.
type oracle struct {
	policy *ratelimit.Policy

	// coarse is how much shorter than its period a window may be: Redis keeps
	// fixed windows in whole milliseconds of its clock.
	coarse time.Duration

	admitted map[string][]admission
	refunded map[string]bool
}

// An admission happened at some time in an interval, of no length where the
// clock is the test's own.
type admission struct {
	from, to time.Duration
	cost     int
}

func newOracle(p *ratelimit.Policy) *oracle {
	o := &oracle{policy: p}
	o.startAnew()
	return o
}

// startAnew forgets everything: the clock was set back, and nothing is promised
// about windows that reach over that.
func (o *oracle) startAnew() {
	o.admitted, o.refunded = map[string][]admission{}, map[string]bool{}
}

func (o *oracle) reset(key string) {
	delete(o.admitted, key)
	delete(o.refunded, key)
}

func period(l ratelimit.Limit) time.Duration {
	return (l.Period + time.Millisecond - 1).Truncate(time.Millisecond)
}

func burst(l ratelimit.Limit) int {
	if l.Burst > 0 {
		return l.Burst
	}
	return l.Requests
}

// promise is the most that may be admitted in any window of l.
func (o *oracle) promise(l ratelimit.Limit, refunded bool) int {
	switch o.policy.Algorithm() {
	case ratelimit.SlidingWindowLog:
		return l.Requests
	case ratelimit.TokenBucket:
		return l.Requests + burst(l) - 1
	}
	if refunded { // the one request that opened a window may have been given back
		return 2 * l.Requests
	}
	return 2*l.Requests - 1
}

// longestWait is the most that a client may be told to wait.
func (o *oracle) longestWait(l ratelimit.Limit) time.Duration {
	switch o.policy.Algorithm() {
	case ratelimit.SlidingWindowCounter:
		return 2 * period(l)
	case ratelimit.TokenBucket:
		return max(period(l), period(l)*time.Duration(burst(l))/time.Duration(l.Requests)+time.Microsecond)
	}
	return period(l)
}

// admit notes an admission, and returns what it breaks. Each window that could
// be the fullest ends with one.
func (o *oracle) admit(key string, a admission) error {
	o.admitted[key] = append(o.admitted[key], a)
	for _, l := range o.policy.Limits() {
		n := 0
		for _, other := range o.admitted[key] {
			if a.to-other.from < period(l)-o.coarse {
				n += other.cost
			}
		}
		if most := o.promise(l, o.refunded[key]); n > most {
			return fmt.Errorf("%d were admitted in %v until %v, by a limit of %v using %v that promises %d", n, period(l), a.to, l, o.policy.Algorithm(), most)
		}
	}
	return nil
}

// refund takes cost off what was admitted last. Of several requests that could
// be meant a store may choose; with this choice none is accused of what it may do.
func (o *oracle) refund(key string, cost int) {
	o.refunded[key] = true
	list := o.admitted[key]
	for i := len(list) - 1; i >= 0 && cost > 0; i-- {
		given := min(cost, list[i].cost)
		list[i].cost -= given
		cost -= given
	}
}

// A world is a store whose time is the test's.
type world struct {
	store   ratelimit.Store
	now     func() time.Duration
	advance func(time.Duration)
	unit    time.Duration // the smallest step of time that the store knows
	back    bool          // whether the clock may be set back
}

// live draws a life of a store, and lets the oracle judge it.
func live(t *rapid.T, policy *ratelimit.Policy, w world) {
	o := newOracle(policy)
	ctx := context.Background()
	var last []ratelimit.Result
	take := func(key string, cost int) (admitted bool, retry time.Duration) {
		results := make([]ratelimit.Result, len(policy.Limits()))
		require.NoError(t, w.store.Take(ctx, policy, key, cost, results))
		last, admitted = results, true
		for i, r := range results {
			admitted = admitted && r.Allowed
			retry = max(retry, r.RetryAfter)
			require.LessOrEqual(t, r.RetryAfter, o.longestWait(policy.Limits()[i]), "nobody is locked out for longer")
			require.GreaterOrEqual(t, r.Remaining, 0)
			require.Equal(t, r.Allowed, r.RetryAfter == 0)
		}
		if admitted {
			require.NoError(t, o.admit(key, admission{w.now(), w.now(), cost}))
		}
		return admitted, retry
	}
	for range rapid.IntRange(1, 50).Draw(t, "calls") {
		step := drawStep(t, last, w.unit).Truncate(w.unit)
		if w.back && rapid.IntRange(0, 19).Draw(t, "direction") == 0 {
			w.advance(-step)
			o.startAnew()
		} else {
			w.advance(step)
		}
		key := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "key")
		cost := rapid.IntRange(1, maxCost(policy)).Draw(t, "cost")
		switch rapid.SampledFrom([]string{"take", "take", "take", "take", "wait", "refund", "reset"}).Draw(t, "call") {
		case "take":
			take(key, cost)
		case "wait":
			if admitted, retry := take(key, cost); !admitted {
				if retry > w.unit {
					w.advance(retry - w.unit)
					admitted, rest := take(key, cost)
					require.False(t, admitted, "earlier than the %v it was told", retry)
					require.LessOrEqual(t, rest, w.unit, "the wait does not grow")
					retry = w.unit
				}
				w.advance(retry)
				admitted, _ = take(key, cost)
				require.True(t, admitted, "after the wait it was told")
			}
		case "refund":
			require.NoError(t, w.store.Refund(ctx, policy, key, cost, nil))
			o.refund(key, cost)
		case "reset":
			require.NoError(t, w.store.Reset(ctx, policy, key))
			o.reset(key)
		}
	}
}

func TestTheOracleFindsEveryPromiseKeptInMemory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		clock := ratelimittest.NewClock()
		start := clock.Now()
		live(t, drawPolicy(t), world{
			store: ratelimit.NewMemoryStore(ratelimit.WithClock(clock.Now)),
			now:   func() time.Duration { return clock.Now().Sub(start) }, advance: clock.Advance,
			unit: time.Nanosecond, back: true,
		})
	})
}

func TestTheOracleFindsEveryPromiseKeptInRedis(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		policy, unit := drawMiniPolicy(t)
		rapid.SyncTest(t, func(t *rapid.T) {
			m := miniredis.NewMiniRedis()
			m.ClockTTL(true)
			defer m.Close()
			client := redis.NewClient(&redis.Options{
				Addr:   "127.0.0.1:1", // or it would look a name up
				Dialer: func(context.Context, string, string) (net.Conn, error) { return m.Dial() },
			})
			defer client.Close()
			start := time.Now()
			live(t, policy, world{
				store: ratelimit.NewRedisStore(client, ratelimit.WithDenyCache(0)),
				now:   func() time.Duration { return time.Since(start) },
				advance: func(d time.Duration) {
					time.Sleep(d) // an instant, in the bubble
					synctest.Wait()
					m.Exists("") // TTLs follow the clock when a database is touched
				},
				unit: unit,
			})
		})
	})
}

func TestTheOracleFindsEveryPromiseKeptInARedisWhoseClockIsSetBack(t *testing.T) {
	start := time.Date(2030, time.May, 1, 0, 0, 0, 0, time.UTC)
	m, client := startMini(t, start)
	clock := &miniClock{m, start}
	rapid.Check(t, func(t *rapid.T) {
		m.FlushAll()
		policy, unit := drawMiniPolicy(t)
		live(t, policy, world{
			store: ratelimit.NewRedisStore(client, ratelimit.WithDenyCache(0)),
			now:   func() time.Duration { return clock.now.Sub(start) }, advance: func(d time.Duration) { clock.set(clock.now.Add(d)) },
			unit: unit, back: true,
		})
	})
}

func TestTheOracleFindsEveryPromiseKeptInARealRedis(t *testing.T) {
	client := startRedis(t).client()
	ctx := context.Background()
	for _, algorithm := range algorithms {
		t.Run(algorithm.String(), func(t *testing.T) {
			limits := []ratelimit.Limit{ratelimit.Per(5, 30*time.Millisecond), ratelimit.Per(12, 150*time.Millisecond).WithBurst(14)}
			policy := must(ratelimit.NewPolicy("oracle", algorithm, limits...))
			store := ratelimit.NewRedisStore(client, ratelimit.WithDenyCache(0))
			o := newOracle(policy)
			if algorithm == ratelimit.FixedWindow {
				o.coarse = time.Millisecond
			}
			start := time.Now()
			take := func(cost int) (admitted bool, retry time.Duration) {
				results := make([]ratelimit.Result, len(limits))
				from := time.Since(start)
				require.NoError(t, store.Take(ctx, policy, "k", cost, results))
				to := time.Since(start)
				admitted = results[0].Allowed && results[1].Allowed
				if admitted {
					require.NoError(t, o.admit("k", admission{from, to, cost}))
				}
				return admitted, max(results[0].RetryAfter, results[1].RetryAfter)
			}
			for i := 0; time.Since(start) < time.Second; i++ {
				cost := 1 + i%3
				if admitted, retry := take(cost); !admitted && i%2 == 0 {
					time.Sleep(retry) // on the server's clock
					admitted, _ = take(cost)
					require.True(t, admitted, "after the wait it was told")
				}
				if i%40 == 0 {
					require.NoError(t, store.Refund(ctx, policy, "k", 1, nil))
					o.refund("k", 1)
				}
			}
		})
	}
}

func TestTheOracleFindsABrokenPromise(t *testing.T) {
	const limit = 5
	for algorithm, most := range map[ratelimit.Algorithm]int{
		ratelimit.FixedWindow: 9, ratelimit.SlidingWindowLog: 5, ratelimit.SlidingWindowCounter: 9, ratelimit.TokenBucket: 9,
	} {
		o := newOracle(must(ratelimit.NewPolicy("n", algorithm, ratelimit.PerSecond(limit))))
		at := func(i int) admission { return admission{time.Duration(i), time.Duration(i), 1} }
		for i := range most {
			require.NoError(t, o.admit("k", at(i)), algorithm)
		}
		require.Error(t, o.admit("k", at(int(time.Second)-1)), "one too many, at the end of a window")
		o.reset("k")
		for i := range most {
			require.NoError(t, o.admit("k", at(i)), "anew")
		}
		o.refund("k", 1)
		require.NoError(t, o.admit("k", at(most)), "one was given back")
		o.admitted["k"] = o.admitted["k"][1:]
		require.NoError(t, o.admit("k", at(int(time.Second)+1)), "one has left the window")
	}
}
