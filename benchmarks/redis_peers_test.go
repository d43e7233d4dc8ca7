package benchmarks_test

import (
	"context"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	ulule "github.com/ulule/limiter/v3"
	ululeredis "github.com/ulule/limiter/v3/drivers/store/redis"
)

// A redisSubject is one limiter that counts in Redis. Of several quotas all
// must hold; those that take one at a time ask for each in turn, and stop at
// the first that denies.
type redisSubject struct {
	name string
	make func(tb testing.TB, c redis.UniversalClient, quotas ...quota) take
}

// redisSubjects are ours, one for each algorithm (see ours_redis_test.go), the
// peers, and the floors.
func redisSubjects() []redisSubject {
	return append(ourRedis(), append(redisPeers(), redisFloors()...)...)
}

func redisPeers() []redisSubject {
	ctx := context.Background()
	return []redisSubject{
		{"ulule", func(tb testing.TB, c redis.UniversalClient, quotas ...quota) take {
			s, err := ululeredis.NewStore(c)
			require.NoError(tb, err)
			var limiters []*ulule.Limiter
			for _, q := range quotas {
				limiters = append(limiters, ulule.New(s, ulule.Rate{Limit: int64(q.requests), Period: q.period}))
			}
			names := suffixes(len(quotas))
			return func(key string) bool {
				for i, l := range limiters {
					r, err := l.Get(ctx, key+names[i])
					if err != nil || r.Reached {
						return false
					}
				}
				return true
			}
		}},
		{"redis_rate", func(_ testing.TB, c redis.UniversalClient, quotas ...quota) take {
			l := redis_rate.NewLimiter(c)
			var limits []redis_rate.Limit
			for _, q := range quotas {
				limits = append(limits, redis_rate.Limit{Rate: q.requests, Burst: q.requests, Period: q.period})
			}
			names := suffixes(len(quotas))
			return func(key string) bool {
				for i, limit := range limits {
					r, err := l.Allow(ctx, key+names[i], limit)
					if err != nil || r.Allowed == 0 {
						return false
					}
				}
				return true
			}
		}},
	}
}

// suffixes keeps the limits of one key apart. The first is empty, so that a
// single limit costs no joining of strings.
func suffixes(n int) []string { return []string{"", ":2", ":3"}[:n] }

// redisFloors are the least that a limiter in Redis has to do: a round trip,
// and a script that counts.
func redisFloors() []redisSubject {
	ctx := context.Background()
	count := redis.NewScript(`
local n = redis.call('INCR', KEYS[1])
if n == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return n`)
	return []redisSubject{
		{"floor-evalsha", func(_ testing.TB, c redis.UniversalClient, quotas ...quota) take {
			names := suffixes(len(quotas))
			return func(key string) bool {
				for i, q := range quotas {
					n, err := count.Run(ctx, c, []string{key + names[i]}, q.period.Milliseconds()).Int()
					if err != nil || n > q.requests {
						return false
					}
				}
				return true
			}
		}},
		{"floor-ping", func(_ testing.TB, c redis.UniversalClient, quotas ...quota) take {
			return func(string) bool {
				for range quotas {
					if c.Ping(ctx).Err() != nil {
						return false
					}
				}
				return true
			}
		}},
	}
}

// Quotas for Redis: never exhausted in a run, of one, two and three periods.
var ampleRedis = []quota{
	{requests: 1_000_000, period: time.Hour},
	{requests: 10_000_000, period: 24 * time.Hour},
	{requests: 500_000, period: time.Minute},
}
