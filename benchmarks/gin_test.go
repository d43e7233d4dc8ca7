package benchmarks_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	jgl "github.com/JGLTechnologies/gin-rate-limit"
	"github.com/aed328ba/ratelimit"
	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"
	ulule "github.com/ulule/limiter/v3"
	ululegin "github.com/ulule/limiter/v3/drivers/middleware/gin"
	ululememory "github.com/ulule/limiter/v3/drivers/store/memory"
)

// middlewares are those under test, nil for none.
func middlewares() []struct {
	name string
	make func(q quota) gin.HandlerFunc
} {
	type row = struct {
		name string
		make func(q quota) gin.HandlerFunc
	}
	rows := []row{{"bare", nil}}
	for _, a := range algorithms {
		rows = append(rows, row{ourName(a), func(q quota) gin.HandlerFunc {
			return ratelimit.New(ratelimit.WithLimit(ourLimit(a, q)), ratelimit.WithAlgorithm(a))
		}})
	}
	return append(rows,
		row{"ulule", func(q quota) gin.HandlerFunc {
			return ululegin.NewMiddleware(ulule.New(ululememory.NewStore(), ulule.Rate{Limit: int64(q.requests), Period: q.period}))
		}},
		row{"gin-rate-limit", func(q quota) gin.HandlerFunc {
			return jgl.RateLimiter(jglStore(q), &jgl.Options{
				KeyFunc: func(c *gin.Context) string { return c.ClientIP() },
				ErrorHandler: func(c *gin.Context, i jgl.Info) {
					c.String(http.StatusTooManyRequests, "Too many requests. Try again in "+time.Until(i.ResetTime).String())
				},
			})
		}},
	)
}

func jglStore(q quota) jgl.Store {
	return jgl.InMemoryStore(&jgl.InMemoryOptions{Rate: q.period, Limit: uint(q.requests)})
}

// BenchmarkGin measures a whole request by one client, headers and all.
func BenchmarkGin(b *testing.B) {
	gin.SetMode(gin.ReleaseMode)
	for _, o := range outcomes {
		for _, m := range middlewares() {
			if m.make == nil && !o.want {
				continue
			}
			ready := lazily(func() *gin.Engine {
				r := gin.New()
				require.NoError(b, r.SetTrustedProxies(nil))
				if m.make != nil {
					r.Use(m.make(o.quota(1)))
				}
				r.GET("/", func(c *gin.Context) { c.Status(http.StatusNoContent) })
				return r
			})
			b.Run("outcome="+o.name+"/middleware="+m.name, func(b *testing.B) {
				r := ready()
				req := httptest.NewRequest(http.MethodGet, "/", nil)
				req.RemoteAddr = "203.113.245.117:4711"
				r.ServeHTTP(httptest.NewRecorder(), req) // exhausts the scarce quota
				w := &statusWriter{nullWriter: nullWriter{header: http.Header{}}}
				b.ReportAllocs()
				for b.Loop() {
					clear(w.header)
					r.ServeHTTP(w, req)
				}
				require.Equal(b, o.want, w.status != http.StatusTooManyRequests)
			})
		}
	}
}

// statusWriter also remembers the status.
type statusWriter struct {
	nullWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) { w.status = status }
