package benchmarks_test

import (
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/aed328ba/ratelimit"
	"github.com/stretchr/testify/require"
)

// BenchmarkLatency measures single calls: their median, their tail and the
// longest, in a full table of a million keys while every call brings a key
// never seen before. Two references show what is not ours: "nothing", which
// does nothing, what reading the clock takes; "spinning", which touches no
// memory for a microsecond, how often the machine interrupts what takes about
// as long as our calls. Run it for one iteration, which is half a million calls.
func BenchmarkLatency(b *testing.B) {
	const held, calls = 1_000_000, 500_000
	known := lazily(func() keySet { return newKeySet(held) })
	subjects := append([]subject{
		{name: "nothing", make: func(testing.TB, quota) take {
			return func(string) bool { return true }
		}},
		{name: "spinning", make: func(testing.TB, quota) take {
			return func(string) bool {
				for start := time.Now(); time.Since(start) < time.Microsecond; {
				}
				return true
			}
		}},
	}, ourMemory()...)
	for _, s := range subjects {
		b.Run("limiter="+s.name, func(b *testing.B) {
			decide := s.make(b, quota{requests: 10_000, period: 24 * time.Hour, maxKeys: held})
			for _, key := range known().fill {
				decide(key)
			}
			keys := unseen(held, calls)
			took := make([]time.Duration, calls)
			runtime.GC()
			b.ResetTimer()
			for range b.N {
				for i, key := range keys {
					start := time.Now()
					decide(key)
					took[i] = time.Since(start)
				}
			}
			b.StopTimer()
			slices.Sort(took)
			for _, p := range []struct {
				at   float64
				unit string
			}{{0.5, "p50-ns"}, {0.99, "p99-ns"}, {0.999, "p99.9-ns"}, {1, "max-ns"}} {
				b.ReportMetric(float64(took[int(p.at*(calls-1))]), p.unit)
			}
		})
	}
}

func TestAMemoryStoreUnderInsertionHoldsExactlyItsBound(t *testing.T) {
	const bound = 10_000
	for _, a := range algorithms {
		store := ratelimit.NewMemoryStore(ratelimit.WithMaxKeys(bound))
		l := ourLimiter(t, a, store, quota{requests: 10_000, period: time.Hour})
		most := 0
		for _, key := range unseen(0, 3*bound) {
			_, err := l.Allow(t.Context(), key)
			require.NoError(t, err)
			most = max(most, store.Len())
		}
		require.Equal(t, bound, most, "%v", a)
	}
}
