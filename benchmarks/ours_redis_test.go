package benchmarks_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/aed328ba/ratelimit"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// ourRedis are our algorithms as they come.
func ourRedis() []redisSubject {
	var all []redisSubject
	for _, a := range algorithms {
		all = append(all, redisSubject{ourName(a), ourRedisMake(a)})
	}
	return all
}

// ourRedisWithoutDenyCache ask Redis about denied keys too.
func ourRedisWithoutDenyCache() []redisSubject {
	var all []redisSubject
	for _, a := range algorithms {
		all = append(all, redisSubject{ourName(a), ourRedisMake(a, ratelimit.WithDenyCache(0))})
	}
	return all
}

func ourRedisMake(a ratelimit.Algorithm, opts ...ratelimit.RedisOption) func(testing.TB, redis.UniversalClient, ...quota) take {
	return func(tb testing.TB, c redis.UniversalClient, quotas ...quota) take {
		tb.Helper()
		l := ourLimiter(tb, a, ratelimit.NewRedisStore(c, opts...), quotas...)
		ctx := context.Background()
		return func(key string) bool {
			r, err := l.Allow(ctx, key)
			return err == nil && r.Allowed
		}
	}
}

// ourRedisFilled returns a limiter of the scarcest kind of our algorithm, and
// lets each key consume cost at once.
func ourRedisFilled(tb testing.TB, a ratelimit.Algorithm, c redis.UniversalClient, limit, cost int, keys []string) take {
	tb.Helper()
	l, err := ratelimit.NewLimiter(ratelimit.WithAlgorithm(a), ratelimit.WithLimit(ratelimit.PerDay(limit)),
		ratelimit.WithStore(ratelimit.NewRedisStore(c, ratelimit.WithDenyCache(0))), ratelimit.WithTimeout(10*time.Second))
	require.NoError(tb, err)
	ctx := context.Background()
	for _, key := range keys {
		r, err := l.AllowN(ctx, key, cost)
		require.NoError(tb, err)
		require.True(tb, r.Allowed)
	}
	return func(key string) bool {
		r, err := l.Allow(ctx, key)
		return err == nil && r.Allowed
	}
}

// BenchmarkRedisLimit measures what a decision costs against the limit: on
// keys that have half of it left, and on keys that have nothing left.
func BenchmarkRedisLimit(b *testing.B) {
	s := startServer(b)
	const goroutines = 16
	for _, a := range algorithms {
		for _, limit := range []int{10, 100, 1_000, 10_000} {
			for _, o := range []struct {
				name string
				used int
				want bool
			}{{"allowed", limit / 2, true}, {"denied", limit, false}} {
				b.Run("limiter="+ourName(a)+"/outcome="+o.name+"/limit="+strconv.Itoa(limit), func(b *testing.B) {
					s.flush(b)
					// Enough keys that what is left is not used up, each
					// goroutine taking them in turn.
					keys := newKeySet(max(goroutines, 2*b.N/limit+1)).fill
					decide := ourRedisFilled(b, a, s.client, limit, o.used, keys)
					inParallel(b, s, goroutines, keys, decide, o.want)
				})
			}
		}
	}
}

// BenchmarkRedisLogSize measures what a log of n requests takes in Redis.
func BenchmarkRedisLogSize(b *testing.B) {
	s := startServer(b)
	for _, n := range []int{10, 100, 1_000} {
		const entries = 20_000 // of all keys
		b.Run("limiter="+ourName(ratelimit.SlidingWindowLog)+"/entries="+strconv.Itoa(n), func(b *testing.B) {
			for range b.N {
				s.flush(b)
				s.warm(b)
				before := s.usedMemory(b)
				keys := newKeySet(entries / n).fill
				decide := ourRedisFilled(b, ratelimit.SlidingWindowLog, s.client, n, 1, keys)
				for range n - 1 {
					filled(decide, keys)
				}
				s.reportSize(b, before, len(keys))
			}
		})
	}
}
