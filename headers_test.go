package ratelimit_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/aed328ba/ratelimit"
	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// headersOf returns the rate limit headers of a response.
func headersOf(resp *http.Response) map[string]string {
	got := map[string]string{}
	for name, values := range resp.Header {
		if name != "Content-Type" && name != "Content-Length" {
			got[name] = values[0]
		}
	}
	return got
}

func TestHeaderStyles(t *testing.T) {
	// The clock stands at half a second past the epoch second 1903824000, so
	// that times are rounded up.
	const now = 1903824000
	two := []ratelimit.Option{ratelimit.WithLimit(ratelimit.PerSecond(10), ratelimit.PerMinute(2)), ratelimit.WithName("api")}
	bucket := []ratelimit.Option{ratelimit.WithLimit(ratelimit.PerSecond(20).WithBurst(40)), ratelimit.WithAlgorithm(ratelimit.TokenBucket)}
	fraction := []ratelimit.Option{ratelimit.WithLimit(ratelimit.Per(2, 1500*time.Millisecond))}
	for name, test := range map[string]struct {
		opts                  []ratelimit.Option
		style                 []ratelimit.HeaderStyle
		allowed, allowedLater map[string]string // the first request; the second, 250 ms later
		denied                map[string]string // the third
	}{
		"default": {
			two, nil,
			map[string]string{"X-Ratelimit-Limit": "2", "X-Ratelimit-Remaining": "1", "X-Ratelimit-Reset": strconv.Itoa(now + 61)},
			map[string]string{"X-Ratelimit-Limit": "2", "X-Ratelimit-Remaining": "0", "X-Ratelimit-Reset": strconv.Itoa(now + 61)},
			map[string]string{"X-Ratelimit-Limit": "2", "X-Ratelimit-Remaining": "0", "X-Ratelimit-Reset": strconv.Itoa(now + 61), "Retry-After": "60", "Cache-Control": "no-store"},
		},
		"delta": {
			two,
			[]ratelimit.HeaderStyle{ratelimit.HeadersXRateLimitDelta},
			map[string]string{"X-Ratelimit-Limit": "2", "X-Ratelimit-Remaining": "1", "X-Ratelimit-Reset": "60"},
			map[string]string{"X-Ratelimit-Limit": "2", "X-Ratelimit-Remaining": "0", "X-Ratelimit-Reset": "60"},
			map[string]string{"X-Ratelimit-Limit": "2", "X-Ratelimit-Remaining": "0", "X-Ratelimit-Reset": "60", "Retry-After": "60", "Cache-Control": "no-store"},
		},
		"draft 6": {
			two,
			[]ratelimit.HeaderStyle{ratelimit.HeadersDraft6},
			map[string]string{"Ratelimit-Limit": "2", "Ratelimit-Remaining": "1", "Ratelimit-Reset": "60", "Ratelimit-Policy": "10;w=1, 2;w=60"},
			map[string]string{"Ratelimit-Limit": "2", "Ratelimit-Remaining": "0", "Ratelimit-Reset": "60", "Ratelimit-Policy": "10;w=1, 2;w=60"},
			map[string]string{"Ratelimit-Limit": "2", "Ratelimit-Remaining": "0", "Ratelimit-Reset": "60", "Ratelimit-Policy": "10;w=1, 2;w=60", "Retry-After": "60", "Cache-Control": "no-store"},
		},
		"draft 10": {
			two,
			[]ratelimit.HeaderStyle{ratelimit.HeadersDraft10},
			map[string]string{"Ratelimit-Policy": `"api-second";q=10;w=1, "api-minute";q=2;w=60`, "Ratelimit": `"api-second";r=9;t=1, "api-minute";r=1;t=60`},
			map[string]string{"Ratelimit-Policy": `"api-second";q=10;w=1, "api-minute";q=2;w=60`, "Ratelimit": `"api-second";r=8;t=1, "api-minute";r=0;t=60`},
			map[string]string{"Ratelimit-Policy": `"api-second";q=10;w=1, "api-minute";q=2;w=60`, "Ratelimit": `"api-minute";r=0;t=60`, "Retry-After": "60", "Cache-Control": "no-store"},
		},
		"draft 10, a bucket of 40 fills in 2 s": {
			bucket,
			[]ratelimit.HeaderStyle{ratelimit.HeadersDraft10},
			map[string]string{"Ratelimit-Policy": `"default";q=40;w=2`, "Ratelimit": `"default";r=39;t=1`},
			nil, nil,
		},
		"draft 10, no whole seconds": {
			fraction,
			[]ratelimit.HeaderStyle{ratelimit.HeadersDraft10},
			map[string]string{"Ratelimit-Policy": `"default";q=2`, "Ratelimit": `"default";r=1;t=2`},
			nil,
			map[string]string{"Ratelimit-Policy": `"default";q=2`, "Ratelimit": `"default";r=0;t=1`, "Retry-After": "1", "Cache-Control": "no-store"},
		},
		"draft 6, no whole seconds": {
			fraction,
			[]ratelimit.HeaderStyle{ratelimit.HeadersDraft6},
			map[string]string{"Ratelimit-Limit": "2", "Ratelimit-Remaining": "1", "Ratelimit-Reset": "2"},
			nil, nil,
		},
		"none": {
			two,
			[]ratelimit.HeaderStyle{ratelimit.HeadersNone},
			map[string]string{},
			map[string]string{},
			map[string]string{"Retry-After": "60", "Cache-Control": "no-store"},
		},
		"two styles": {
			two,
			[]ratelimit.HeaderStyle{ratelimit.HeadersXRateLimit, ratelimit.HeadersDraft6},
			map[string]string{
				"X-Ratelimit-Limit": "2", "X-Ratelimit-Remaining": "1", "X-Ratelimit-Reset": strconv.Itoa(now + 61),
				"Ratelimit-Limit": "2", "Ratelimit-Remaining": "1", "Ratelimit-Reset": "60", "Ratelimit-Policy": "10;w=1, 2;w=60",
			},
			nil, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			opts := test.opts
			if test.style != nil {
				opts = append([]ratelimit.Option{ratelimit.WithHeaders(test.style...)}, opts...)
			}
			l, clock := limited(t, opts...)
			clock.Advance(500 * time.Millisecond)
			r := engine(l.Middleware())
			for _, want := range []map[string]string{test.allowed, test.allowedLater, test.denied} {
				if resp := get(r); want != nil {
					assert.Equal(t, want, headersOf(resp))
				}
				clock.Advance(250 * time.Millisecond)
			}
		})
	}
}

func TestDraft10ListsThePoliciesOfEveryLimiterAndOnADenialTheOneExceeded(t *testing.T) {
	outer, _ := limited(t, ratelimit.WithName("outer"), ratelimit.WithLimit(ratelimit.PerHour(9)), ratelimit.WithHeaders(ratelimit.HeadersDraft10))
	inner, _ := limited(t, ratelimit.WithName("inner"), ratelimit.WithLimit(ratelimit.PerMinute(1)), ratelimit.WithHeaders(ratelimit.HeadersDraft10))
	r := engine(outer.Middleware(), inner.Middleware())
	assert.Equal(t, map[string]string{
		"Ratelimit-Policy": `"outer";q=9;w=3600, "inner";q=1;w=60`, "Ratelimit": `"outer";r=8;t=3600, "inner";r=0;t=60`,
	}, headersOf(get(r)))
	assert.Equal(t, map[string]string{
		"Ratelimit-Policy": `"outer";q=9;w=3600, "inner";q=1;w=60`, "Ratelimit": `"inner";r=0;t=60`,
		"Retry-After": "60", "Cache-Control": "no-store",
	}, headersOf(get(r)))
}

func TestStylesOfStackedLimitersDoNotDisturbEachOther(t *testing.T) {
	x, _ := limited(t, ratelimit.WithLimit(ratelimit.PerHour(9)), ratelimit.WithHeaders(ratelimit.HeadersXRateLimitDelta))
	draft, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(3)), ratelimit.WithHeaders(ratelimit.HeadersDraft6))
	assert.Equal(t, map[string]string{
		"X-Ratelimit-Limit": "9", "X-Ratelimit-Remaining": "8", "X-Ratelimit-Reset": "3600",
		"Ratelimit-Limit": "3", "Ratelimit-Remaining": "2", "Ratelimit-Reset": "60", "Ratelimit-Policy": "3;w=60",
	}, headersOf(get(engine(x.Middleware(), draft.Middleware()))))
}

func TestRetryAfterIsInWholeSecondsAndTheRetrySucceeds(t *testing.T) {
	for _, limit := range []ratelimit.Limit{ratelimit.Per(1, time.Millisecond), ratelimit.Per(1, 999*time.Millisecond), ratelimit.PerSecond(1), ratelimit.Per(1, 1001*time.Millisecond), ratelimit.PerDay(1)} {
		for _, algorithm := range algorithms {
			l, clock := limited(t, ratelimit.WithLimit(limit), ratelimit.WithAlgorithm(algorithm))
			r := engine(l.Middleware())
			get(r)
			resp := get(r)
			require.Equal(t, 429, resp.StatusCode)
			wait, err := strconv.Atoi(resp.Header.Get("Retry-After"))
			require.NoError(t, err, "an integer")
			require.GreaterOrEqual(t, wait, 1)
			clock.Advance(time.Duration(wait) * time.Second)
			assert.Equal(t, 200, get(r).StatusCode, "%v %v", algorithm, limit)
		}
	}
}

func TestADenialIsProblemDetails(t *testing.T) {
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(1)))
	r := engine(func(c *gin.Context) { c.Header("Cache-Control", "public, max-age=600") }, l.Middleware())
	assert.Equal(t, "public, max-age=600", get(r).Header.Get("Cache-Control"), "left alone on success")
	resp := get(r)
	assert.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"))
	assert.Equal(t, "no-store", resp.Header.Get("Cache-Control"), "a 429 must not be cached")
	var problem struct {
		Type, Title, Detail string
		Status              int
	}
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&problem))
	assert.Equal(t, "about:blank", problem.Type)
	assert.Equal(t, "Too Many Requests", problem.Title)
	assert.Equal(t, 429, problem.Status)
	assert.Equal(t, "The rate limit of 1/minute is exceeded. Try again in 60 seconds.", problem.Detail)
}

// A goneWriter is a connection whose client is gone.
type goneWriter struct{ http.ResponseWriter }

func (goneWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestABodyThatCannotBeWrittenIsAnErrorOfTheRequest(t *testing.T) {
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(1)))
	var errs []error
	r := engine(func(c *gin.Context) {
		c.Next()
		for _, err := range c.Errors {
			errs = append(errs, err.Err)
		}
	}, l.Middleware())
	require.Equal(t, 200, get(r).StatusCode)
	r.ServeHTTP(goneWriter{httptest.NewRecorder()}, httptest.NewRequest(http.MethodGet, "/", nil))
	assert.Equal(t, []error{io.ErrClosedPipe}, errs)
}

func TestHeadersAreWrittenBeforeTheNextHandlerRuns(t *testing.T) {
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(3)))
	r := gin.New()
	r.Use(l.Middleware())
	r.GET("/", func(c *gin.Context) {
		c.String(http.StatusOK, "body")
		c.Writer.Flush()
	})
	assert.Equal(t, "2", get(r).Header.Get("X-RateLimit-Remaining"))
}

func TestHeaderNamesForCORS(t *testing.T) {
	assert.Equal(t, []string{"Retry-After", "X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"}, ratelimit.HeaderNames())
	assert.Equal(t, []string{"Retry-After", "Ratelimit-Policy", "Ratelimit"}, ratelimit.HeaderNames(ratelimit.HeadersDraft10))
	assert.Equal(t, []string{"Retry-After"}, ratelimit.HeaderNames(ratelimit.HeadersNone))
}
