package ratelimit_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/aed328ba/ratelimit"
	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
)

// The comparison with other libraries is in the benchmarks module.

var algorithms = []ratelimit.Algorithm{
	ratelimit.FixedWindow, ratelimit.SlidingWindowLog, ratelimit.SlidingWindowCounter, ratelimit.TokenBucket,
}

func BenchmarkAllow(b *testing.B) {
	ctx := context.Background()
	for _, keys := range []int{1, 100_000, 1_000_000} {
		names := make([]string, keys)
		for i := range names {
			names[i] = fmt.Sprintf("ip:10.%d.%d.%d", i>>16, i>>8&255, i&255)
		}
		for _, algorithm := range algorithms {
			limit := ratelimit.Per(2_000_000_000, time.Hour)
			if algorithm == ratelimit.SlidingWindowLog {
				limit = ratelimit.Per(100, time.Microsecond*1000)
			}
			b.Run(fmt.Sprintf("%v/keys=%d", algorithm, keys), func(b *testing.B) {
				l := must(ratelimit.NewLimiter(ratelimit.WithLimit(limit), ratelimit.WithAlgorithm(algorithm)))
				for _, k := range names {
					_, _ = l.Allow(ctx, k)
				}
				b.ReportAllocs()
				b.ResetTimer()
				b.RunParallel(func(pb *testing.PB) {
					for i := 0; pb.Next(); i += 7919 {
						_, _ = l.Allow(ctx, names[i%keys])
					}
				})
			})
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func BenchmarkMiddleware(b *testing.B) {
	gin.SetMode(gin.TestMode)
	limited := ratelimit.New(ratelimit.WithLimit(ratelimit.Per(2_000_000_000, time.Hour)))
	denying := ratelimit.New(ratelimit.WithLimit(ratelimit.PerDay(1)))
	for _, bench := range []struct {
		name string
		use  []gin.HandlerFunc
	}{
		{"bare", nil}, {"allowed", []gin.HandlerFunc{limited}}, {"denied", []gin.HandlerFunc{denying}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			r := gin.New()
			r.Use(bench.use...)
			r.GET("/", func(c *gin.Context) { c.Status(http.StatusNoContent) })
			req := httptest.NewRequest(http.MethodGet, "/", nil)
			w := &nullWriter{header: http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				clear(w.header)
				r.ServeHTTP(w, req)
			}
		})
	}
}

func TestDecisionsOnAnExistingKeyAllocateNothingAndTheMiddlewareLittle(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates; CI runs this without it too")
	}
	ctx := context.Background()
	for _, algorithm := range algorithms {
		limit := ratelimit.Per(1000, time.Hour)
		l := must(ratelimit.NewLimiter(ratelimit.WithLimit(limit, ratelimit.PerDay(1_000)), ratelimit.WithAlgorithm(algorithm)))
		for range 600 { // a log's ring has grown
			_, _ = l.Allow(ctx, "k")
		}
		assert.Zero(t, testing.AllocsPerRun(300, func() { _, _ = l.Allow(ctx, "k") }), "%v, allowed", algorithm)
		assert.Zero(t, testing.AllocsPerRun(300, func() { _, _ = l.Allow(ctx, "k") }), "%v, and denied", algorithm)
	}
	r := engine(ratelimit.New(ratelimit.WithLimit(ratelimit.PerHour(1_000_000))))
	req := httptest.NewRequest(http.MethodGet, "/", nil)
	w := &nullWriter{header: http.Header{}}
	serve := func() { r.ServeHTTP(w, req) }
	bare := engine()
	assert.LessOrEqual(t, testing.AllocsPerRun(300, serve)-testing.AllocsPerRun(300, func() { bare.ServeHTTP(w, req) }), 3.0)
}

// nullWriter is a ResponseWriter that costs nothing.
type nullWriter struct{ header http.Header }

func (w *nullWriter) Header() http.Header         { return w.header }
func (w *nullWriter) Write(p []byte) (int, error) { return len(p), nil }
func (w *nullWriter) WriteHeader(int)             {}
