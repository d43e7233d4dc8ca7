package benchmarks_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What should come of the requests of a benchmark. Filling a limiter of the
// scarce quota once exhausts it.
var outcomes = []struct {
	name  string
	quota func(keys int) quota
	want  bool
}{
	{"allowed", ample, true},
	{"denied", scarce, false},
}

// BenchmarkMemory measures decisions on keys that the limiter knows. Where
// -short is given it leaves out a million denied ones: filling takes longer
// than measuring.
func BenchmarkMemory(b *testing.B) {
	for _, n := range []int{1, 1_000, 10_000, 100_000, 1_000_000} {
		keys := lazily(func() keySet { return newKeySet(n) })
		for _, o := range outcomes {
			for _, s := range memorySubjects() {
				compared := n == 1 || n >= 100_000
				grows := strings.HasPrefix(s.name, "ours") || s.name == "floor"
				if !compared && (!grows || !o.want) || testing.Short() && n > 100_000 && !o.want {
					continue
				}
				ready := lazily(func() take {
					decide := s.make(b, o.quota(n))
					for _, key := range keys().fill {
						decide(key)
					}
					runtime.GC()
					return decide
				})
				var at atomic.Int64
				b.Run(fmt.Sprintf("keys=%d/outcome=%s/limiter=%s", n, o.name, s.name), func(b *testing.B) {
					walk(b, ready(), keys().walk, &at, o.want)
				})
			}
		}
	}
}

// walk measures decide on keys, from where the walk before ended, each
// goroutine in a part of its own. What is decided otherwise than wanted is
// reported, lest a limiter look fast for not doing the work.
func walk(b *testing.B, decide take, keys []string, start *atomic.Int64, want bool) {
	b.Helper()
	procs := runtime.GOMAXPROCS(0)
	first := int(start.Add(int64(b.N/procs))) - b.N/procs
	var workers, wrong atomic.Int64
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		at := (first + int(workers.Add(1)-1)*(len(keys)/procs)) % len(keys)
		unexpected := 0
		for pb.Next() {
			if decide(keys[at]) != want {
				unexpected++
			}
			if at++; at == len(keys) {
				at = 0
			}
		}
		wrong.Add(int64(unexpected))
	})
	if n := wrong.Load(); n > 0 {
		b.ReportMetric(float64(n)/float64(b.N), "wrong/op")
	}
}

// newKeysHeld is how many keys a limiter holds before BenchmarkNewKeys brings
// it others, and the bound of those that have one.
const newKeysHeld = 100_000

// BenchmarkNewKeys measures decisions on keys never seen before: insertion,
// and where the limiter has a bound, eviction for each. Run it for a number of
// iterations below the two million keys there are.
func BenchmarkNewKeys(b *testing.B) {
	known := lazily(func() keySet { return newKeySet(newKeysHeld) })
	others := lazily(func() []string { return unseen(newKeysHeld, 2_000_000) })
	for _, s := range memorySubjects() {
		b.Run("limiter="+s.name, func(b *testing.B) {
			q := quota{requests: 10_000, period: 24 * time.Hour, maxKeys: newKeysHeld}
			decide := s.make(b, q)
			for _, key := range known().fill {
				decide(key)
			}
			keys := others()
			runtime.GC()
			walk(b, decide, keys, new(atomic.Int64), true)
		})
	}
}

// BenchmarkKeySize measures what a key takes in memory, by a million of them.
// Each key has memory of its own, which counts where the limiter keeps it.
func BenchmarkKeySize(b *testing.B) {
	n := 1_000_000
	if testing.Short() {
		n = 100_000
	}
	for _, s := range memorySubjects() {
		b.Run("limiter="+s.name, func(b *testing.B) {
			for range b.N {
				before := heap()
				decide := s.make(b, quota{requests: 100, period: time.Hour, maxKeys: n})
				admitted := 0
				for i := range n {
					if decide(string(appendAddress(nil, i))) {
						admitted++
					}
				}
				require.Equal(b, n, admitted)
				b.ReportMetric(float64(heap()-before)/float64(n), "B/key")
				runtime.KeepAlive(decide)
			}
		})
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC() // what sync.Pool holds goes with the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
