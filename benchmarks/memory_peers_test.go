package benchmarks_test

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aed328ba/ratelimit"
	"github.com/didip/tollbooth/v8"
	"github.com/didip/tollbooth/v8/limiter"
	"github.com/go-chi/httprate"
	golimiter "github.com/sethvargo/go-limiter/memorystore"
	"github.com/stretchr/testify/require"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"
	ulule "github.com/ulule/limiter/v3"
	ululememory "github.com/ulule/limiter/v3/drivers/store/memory"
	"golang.org/x/time/rate"
)

// A quota is what every limiter under test is configured to enforce.
type quota struct {
	requests int
	period   time.Duration
	maxKeys  int // for those that have a bound; 0 means a million

	// logPeriod is the period of our log where it should admit everything. It
	// keeps the time of each request, so that over a day it would grow all the
	// time that a benchmark runs.
	logPeriod time.Duration
}

// ample is never exhausted in a run, nor is any key of n ever back at its full
// quota when its turn comes again: else a limiter that forgets such keys would
// not be measured on keys it knows. Our log sees each key some thirty times
// in its period.
func ample(n int) quota {
	const total = 2_000_000_000
	return quota{requests: total / n, period: 24 * time.Hour, logPeriod: max(time.Millisecond, time.Duration(n)*10*time.Microsecond)}
}

// scarce is exhausted by one request.
func scarce(int) quota { return quota{requests: 1, period: 24 * time.Hour} }

// perSecond is q as a steady rate.
func (q quota) perSecond() float64 { return float64(q.requests) / q.period.Seconds() }

func (q quota) bound() int {
	if q.maxKeys == 0 {
		return 1_000_000
	}
	return q.maxKeys
}

// A take decides on one request of key: true if it may pass.
type take func(key string) bool

// A subject is one limiter under test.
type subject struct {
	name string
	make func(tb testing.TB, q quota) take

	// realTime says that it cannot run on the virtual time of a synctest
	// bubble, because it reads the clock past the time package.
	realTime bool
}

var algorithms = []ratelimit.Algorithm{
	ratelimit.FixedWindow, ratelimit.SlidingWindowLog, ratelimit.SlidingWindowCounter, ratelimit.TokenBucket,
}

// memorySubjects are ours, one for each algorithm, the peers, and the floor.
func memorySubjects() []subject {
	return append(append(ourMemory(), floor()), memoryPeers()...)
}

func ourName(a ratelimit.Algorithm) string { return "ours-" + a.String() }

func ourMemory() []subject {
	var all []subject
	for _, a := range algorithms {
		all = append(all, subject{name: ourName(a), make: func(tb testing.TB, q quota) take {
			l := ourLimiter(tb, a, ratelimit.NewMemoryStore(ratelimit.WithMaxKeys(q.bound())), q)
			ctx := context.Background()
			return func(key string) bool {
				r, err := l.Allow(ctx, key)
				return err == nil && r.Allowed
			}
		}})
	}
	return all
}

func ourLimiter(tb testing.TB, a ratelimit.Algorithm, s ratelimit.Store, quotas ...quota) *ratelimit.Limiter {
	tb.Helper()
	var limits []ratelimit.Limit
	for _, q := range quotas {
		limits = append(limits, ourLimit(a, q))
	}
	l, err := ratelimit.NewLimiter(ratelimit.WithStore(s), ratelimit.WithLimit(limits...), ratelimit.WithAlgorithm(a))
	require.NoError(tb, err)
	return l
}

func ourLimit(a ratelimit.Algorithm, q quota) ratelimit.Limit {
	if a != ratelimit.SlidingWindowLog {
		return ratelimit.Per(q.requests, q.period)
	}
	const most = 100_000 // that a log takes
	if q.logPeriod > 0 {
		return ratelimit.Per(most, q.logPeriod)
	}
	return ratelimit.Per(min(most, q.requests), q.period)
}

// floor is the least that a limiter in memory has to do: find a counter that
// other goroutines use too, add to it, and read the clock once.
func floor() subject {
	return subject{name: "floor", make: func(_ testing.TB, q quota) take {
		var counters sync.Map
		end := time.Now().Add(q.period)
		return func(key string) bool {
			n, ok := counters.Load(key)
			if !ok {
				n, _ = counters.LoadOrStore(key, new(atomic.Int64))
			}
			open := time.Now().Before(end)
			return n.(*atomic.Int64).Add(1) <= int64(q.requests) && open
		}
	}}
}

func memoryPeers() []subject {
	ctx := context.Background()
	return []subject{
		{name: "go-limiter", realTime: true, make: func(tb testing.TB, q quota) take {
			s, err := golimiter.New(&golimiter.Config{Tokens: uint64(q.requests), Interval: q.period})
			require.NoError(tb, err)
			tb.Cleanup(func() { _ = s.Close(ctx) })
			return func(key string) bool {
				_, _, _, ok, err := s.Take(ctx, key)
				return ok && err == nil
			}
		}},
		{name: "ulule", make: func(_ testing.TB, q quota) take {
			// Without its cleaner, whose goroutine only a finalizer stops.
			s := ululememory.NewStoreWithOptions(ulule.StoreOptions{Prefix: ulule.DefaultPrefix})
			l := ulule.New(s, ulule.Rate{Limit: int64(q.requests), Period: q.period})
			return func(key string) bool {
				c, err := l.Get(ctx, key)
				return err == nil && !c.Reached
			}
		}},
		{name: "throttled", make: func(tb testing.TB, q quota) take {
			return throttledTake(tb, q, q.bound())
		}},
		{name: "throttled-unbounded", make: func(tb testing.TB, q quota) take {
			return throttledTake(tb, q, 0)
		}},
		{name: "tollbooth", make: func(_ testing.TB, q quota) take {
			l := tollbooth.NewLimiter(q.perSecond(), &limiter.ExpirableOptions{DefaultExpirationTTL: time.Hour}).SetBurst(q.requests)
			return func(key string) bool { return !l.LimitReached(key) }
		}},
		{name: "httprate", make: func(tb testing.TB, q quota) take {
			l := httprate.NewRateLimiter(q.requests, q.period)
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
			require.NoError(tb, err)
			// Its only decision is one that writes headers: into a map for
			// each goroutine, as each request has its own.
			writers := sync.Pool{New: func() any { return &nullWriter{header: http.Header{}} }}
			return func(key string) bool {
				w := writers.Get().(*nullWriter)
				defer writers.Put(w)
				return !l.OnLimit(w, r, key)
			}
		}},
		{name: "x-time-rate", make: func(_ testing.TB, q quota) take {
			var limiters sync.Map
			return func(key string) bool {
				l, ok := limiters.Load(key)
				if !ok {
					l, _ = limiters.LoadOrStore(key, rate.NewLimiter(rate.Limit(q.perSecond()), q.requests))
				}
				return l.(*rate.Limiter).Allow()
			}
		}},
	}
}

func throttledTake(tb testing.TB, q quota, maxKeys int) take {
	tb.Helper()
	s, err := memstore.NewCtx(maxKeys)
	require.NoError(tb, err)
	l, err := throttled.NewGCRARateLimiterCtx(s, throttled.RateQuota{
		MaxRate: throttled.PerDuration(q.requests, q.period), MaxBurst: q.requests - 1,
	})
	require.NoError(tb, err)
	ctx := context.Background()
	return func(key string) bool {
		limited, _, err := l.RateLimitCtx(ctx, key, 1)
		return !limited && err == nil
	}
}

// nullWriter is a ResponseWriter that costs nothing.
type nullWriter struct{ header http.Header }

func (w *nullWriter) Header() http.Header         { return w.header }
func (w *nullWriter) Write(p []byte) (int, error) { return len(p), nil }
func (w *nullWriter) WriteHeader(int)             {}
