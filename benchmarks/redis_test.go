package benchmarks_test

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// The clients of go-redis under test: the plain one, and the one that sends
// together what several goroutines ask at the same time.
var clients = []struct {
	name string
	of   func(tb testing.TB, s *server) redis.UniversalClient
}{
	{"plain", func(_ testing.TB, s *server) redis.UniversalClient { return s.client }},
	{"autopipeline", func(tb testing.TB, s *server) redis.UniversalClient {
		tb.Helper()
		c, err := s.client.AutoPipeline()
		require.NoError(tb, err)
		tb.Cleanup(func() { _ = c.Close() })
		return c
	}},
}

const redisKeys = 10_000

// BenchmarkRedis measures decisions on keys that Redis knows.
func BenchmarkRedis(b *testing.B) {
	s := startServer(b)
	keys := newKeySet(redisKeys)
	for _, subject := range redisSubjects() {
		for _, c := range clients {
			if c.name != "plain" && !strings.HasPrefix(subject.name, "ours") && !strings.HasPrefix(subject.name, "floor") {
				continue // they do not speak of it
			}
			ready := lazily(func() take {
				s.flush(b)
				return filled(subject.make(b, c.of(b, s), ampleRedis[0]), keys.fill)
			})
			for _, goroutines := range []int{1, 16, 64} {
				b.Run("limiter="+subject.name+"/client="+c.name+"/goroutines="+strconv.Itoa(goroutines), func(b *testing.B) {
					inParallel(b, s, goroutines, keys.walk, ready(), true)
				})
			}
		}
	}
}

// BenchmarkRedisLimits measures decisions on one, two and three limits.
func BenchmarkRedisLimits(b *testing.B) {
	s := startServer(b)
	keys := newKeySet(redisKeys)
	for _, subject := range redisSubjects() {
		for _, n := range []int{1, 2, 3} {
			ready := lazily(func() take {
				s.flush(b)
				return filled(subject.make(b, s.client, ampleRedis[:n]...), keys.fill)
			})
			for _, goroutines := range []int{1, 64} {
				b.Run("limiter="+subject.name+"/limits="+strconv.Itoa(n)+"/goroutines="+strconv.Itoa(goroutines), func(b *testing.B) {
					inParallel(b, s, goroutines, keys.walk, ready(), true)
				})
			}
		}
	}
}

// BenchmarkRedisDenied measures decisions on the keys of a hundred clients that
// go on asking after they have used up their limit, by ours with the deny cache
// and without.
func BenchmarkRedisDenied(b *testing.B) {
	s := startServer(b)
	keys := newKeySet(100)
	subjects := redisPeers()
	for _, subject := range ourRedis() {
		subjects = append(subjects, redisSubject{subject.name + "/cache=on", subject.make})
	}
	for _, subject := range ourRedisWithoutDenyCache() {
		subjects = append(subjects, redisSubject{subject.name + "/cache=off", subject.make})
	}
	for _, subject := range subjects {
		ready := lazily(func() take {
			s.flush(b)
			decide := filled(subject.make(b, s.client, scarce(0)), keys.fill)
			return filled(decide, keys.fill) // a second time: a denial has been seen
		})
		for _, goroutines := range []int{1, 64} {
			b.Run("limiter="+subject.name+"/goroutines="+strconv.Itoa(goroutines), func(b *testing.B) {
				inParallel(b, s, goroutines, keys.walk, ready(), false)
			})
		}
	}
}

// filled lets decide see each key once.
func filled(decide take, keys []string) take {
	const goroutines = 16
	each(goroutines, len(keys), func(i int) { decide(keys[i]) })
	return decide
}

// each calls f with every number below n, from several goroutines.
func each(goroutines, n int, f func(i int)) {
	var next atomic.Int64
	var all sync.WaitGroup
	for range goroutines {
		all.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				f(int(i))
			}
		})
	}
	all.Wait()
}

// inParallel measures decide from several goroutines. It also reports how many
// decisions the server has seen for each, lest a limiter look fast for deciding
// elsewhere, and what was decided otherwise than wanted.
func inParallel(b *testing.B, s *server, goroutines int, keys []string, decide take, want bool) {
	b.Helper()
	var wrong atomic.Int64
	before := decisions(s.commands(b))
	b.ReportAllocs()
	b.ResetTimer()
	each(goroutines, b.N, func(i int) {
		if decide(keys[i%len(keys)]) != want {
			wrong.Add(1)
		}
	})
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
	b.ReportMetric(float64(decisions(s.commands(b))-before)/float64(b.N), "asked/op")
	if n := wrong.Load(); n > 0 {
		b.ReportMetric(float64(n)/float64(b.N), "wrong/op")
	}
}

// BenchmarkRedisRoundTrips counts what one decision costs the network and the
// server: writes of the client, scripts, and commands, those in scripts
// included.
func BenchmarkRedisRoundTrips(b *testing.B) {
	s := startServer(b)
	keys := newKeySet(100).fill
	for _, subject := range redisSubjects() {
		for _, n := range []int{1, 2, 3} {
			b.Run("limiter="+subject.name+"/limits="+strconv.Itoa(n), func(b *testing.B) {
				s.flush(b)
				decide := filled(subject.make(b, s.counted, ampleRedis[:n]...), keys)
				commands, writes := s.commands(b), s.writes.Load()
				for i := range b.N {
					require.True(b, decide(keys[i%len(keys)]))
				}
				b.ReportMetric(float64(s.writes.Load()-writes)/float64(b.N), "roundtrips/op")
				total := int64(0)
				after := s.commands(b)
				for name, calls := range after {
					total += calls - commands[name]
				}
				b.ReportMetric(float64(decisions(after)-decisions(commands))/float64(b.N), "asked/op")
				b.ReportMetric(float64(total)/float64(b.N), "commands/op")
			})
		}
	}
}

// BenchmarkRedisSize measures what a key takes in Redis, by 20,000 of them.
func BenchmarkRedisSize(b *testing.B) {
	const n = 20_000
	s := startServer(b)
	keys := newKeySet(n).fill
	for _, subject := range redisSubjects() {
		if subject.name == "floor-ping" {
			continue
		}
		b.Run("limiter="+subject.name, func(b *testing.B) {
			for range b.N {
				s.flush(b)
				decide := subject.make(b, s.client, quota{requests: 100, period: time.Hour})
				decide(keys[0]) // the server keeps the script
				s.warm(b)
				before := s.usedMemory(b)
				filled(decide, keys[1:])
				s.reportSize(b, before, n-1)
			}
		})
	}
}

// warm opens the connections that filled uses, which take memory too.
func (s *server) warm(tb testing.TB) {
	tb.Helper()
	filled(func(string) bool { return s.client.Ping(context.Background()).Err() == nil }, make([]string, 2_000))
}

// reportSize reports what a key has added to the server since before, and what
// the server says that one takes.
func (s *server) reportSize(b *testing.B, before int64, keys int) {
	b.Helper()
	ctx := context.Background()
	b.ReportMetric(float64(s.usedMemory(b)-before)/float64(keys), "B/key")
	name, err := s.client.RandomKey(ctx).Result()
	require.NoError(b, err)
	n, err := s.client.MemoryUsage(ctx, name, 0).Result()
	require.NoError(b, err)
	b.ReportMetric(float64(n), "MEMORY-USAGE-B")
}
