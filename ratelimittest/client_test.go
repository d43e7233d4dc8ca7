package ratelimittest_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"time"

	"github.com/aed328ba/ratelimit"
	"github.com/aed328ba/ratelimit/ratelimittest"
	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func app(opts ...ratelimit.Option) *gin.Engine {
	r := gin.New()
	_ = r.SetTrustedProxies(nil)
	r.Use(ratelimit.New(opts...))
	r.Any("/", func(c *gin.Context) { c.String(http.StatusOK, c.ClientIP()+" "+c.GetHeader("X-API-Key")) })
	return r
}

func TestAClientExhaustsALimitMovesTimeAndReadsTheHeadersOfEachStyle(t *testing.T) {
	for _, style := range []ratelimit.HeaderStyle{ratelimit.HeadersXRateLimit, ratelimit.HeadersXRateLimitDelta, ratelimit.HeadersDraft6, ratelimit.HeadersDraft10} {
		clock := ratelimittest.NewClock()
		client := ratelimittest.NewClient(t, app(ratelimit.WithClock(clock.Now), ratelimit.WithHeaders(style), ratelimit.WithLimit(ratelimit.PerMinute(5), ratelimit.PerHour(100))))
		resp := client.Get("/?q=1")
		ratelimittest.AssertAllowed(t, resp)
		ratelimittest.AssertRemaining(t, resp, 4)
		assert.Equal(t, 4, client.Exhaust("POST", "/"))
		clock.Advance(1500 * time.Millisecond)
		resp = client.Get("/")
		ratelimittest.AssertDenied(t, resp)
		ratelimittest.AssertRetryAfter(t, resp, 58500*time.Millisecond)
		clock.Advance(time.Minute)
		assert.Equal(t, 5, client.Exhaust("GET", "/"))
	}
}

func TestClientsHaveAddressesAndHeadersOfTheirOwn(t *testing.T) {
	client := ratelimittest.NewClient(t, app(ratelimit.WithLimit(ratelimit.PerMinute(2))))
	other := client.From("2001:db8::1").With("X-API-Key", "k")
	body := func(c *ratelimittest.Client) string {
		resp := c.Get("/")
		b := make([]byte, 100)
		n, _ := resp.Body.Read(b)
		return string(b[:n])
	}
	assert.Equal(t, "192.0.2.1 ", body(client))
	assert.Equal(t, "2001:db8::1 k", body(other))
	assert.Equal(t, 1, client.Exhaust("GET", "/"))
	assert.Equal(t, 1, other.Exhaust("GET", "/"))
}

// spyT notes what a test would have failed with.
type spyT struct {
	testing.TB
	failed []string
}

func (t *spyT) Helper() {}

func (t *spyT) Errorf(format string, args ...any) {
	t.failed = append(t.failed, fmt.Sprintf(format, args...))
}

func (t *spyT) Fatalf(format string, args ...any) {
	t.Errorf(format, args...)
	runtime.Goexit()
}

// failures returns what a test would have failed with.
func failures(test func(testing.TB)) []string {
	spy := new(spyT)
	done := make(chan struct{})
	go func() {
		defer close(done)
		test(spy)
	}()
	<-done
	return spy.failed
}

func TestAssertionsFailWithWhatWasWantedAndFound(t *testing.T) {
	response := func(status int, headers ...string) *http.Response {
		w := httptest.NewRecorder()
		for i := 0; i < len(headers); i += 2 {
			w.Header().Add(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
		return w.Result()
	}
	denied := ratelimittest.AssertDenied
	for name, test := range map[string]struct {
		assert func(testing.TB, *http.Response)
		resp   *http.Response
		want   string // "": no failure
	}{
		"denied":                     {denied, response(429, "Retry-After", "60", "Cache-Control", "private, No-Store"), ""},
		"denied, got 200":            {denied, response(200), "want a request that is denied, got 200 OK"},
		"denied, no Retry-After":     {denied, response(429, "Cache-Control", "no-store"), `want Retry-After in whole seconds, at least 1, got []`},
		"denied, 0":                  {denied, response(429, "Retry-After", "0", "Cache-Control", "no-store"), `want Retry-After in whole seconds, at least 1, got ["0"]`},
		"denied, a fraction":         {denied, response(429, "Retry-After", "1.5", "Cache-Control", "no-store"), `want Retry-After in whole seconds, at least 1, got ["1.5"]`},
		"denied, a sign":             {denied, response(429, "Retry-After", "+1", "Cache-Control", "no-store"), `want Retry-After in whole seconds, at least 1, got ["+1"]`},
		"denied, twice":              {denied, response(429, "Retry-After", "1", "Retry-After", "2", "Cache-Control", "no-store"), `want Retry-After in whole seconds, at least 1, got ["1" "2"]`},
		"denied, cached":             {denied, response(429, "Retry-After", "1", "Cache-Control", "public"), `want Cache-Control: no-store, since no cache may store a 429, got "public"`},
		"allowed":                    {ratelimittest.AssertAllowed, response(404), ""},
		"allowed, got 429":           {ratelimittest.AssertAllowed, response(429, "Retry-After", "7"), "want a request that is allowed, got 429 Too Many Requests with Retry-After: 7"},
		"remaining":                  {remaining(3), response(200, "X-RateLimit-Remaining", "3"), ""},
		"remaining, another":         {remaining(3), response(200, "X-RateLimit-Remaining", "2"), "want 3 remaining, got X-RateLimit-Remaining: 2"},
		"remaining, text":            {remaining(3), response(200, "X-RateLimit-Remaining", "3x"), "want 3 remaining, got X-RateLimit-Remaining: 3x"},
		"remaining, least of a list": {remaining(3), response(200, "RateLimit", `"a";r=9;t=1, "b";r=3;t=60`), ""},
		"remaining, two lines":       {remaining(3), response(200, "RateLimit", `"a";r=3;t=1`, "RateLimit", `"b";r=4;t=1`), ""},
		"remaining, no r":            {remaining(3), response(200, "RateLimit", `"a"`), `want 3 remaining, got RateLimit: "a"`},
		"remaining, none": {
			remaining(3), response(404),
			"want 3 remaining, but 404 Not Found has no rate limit header; does its route come after the limiter, and does WithHeaders send any?",
		},
		"retry after":          {after60s, response(429, "Retry-After", "60"), ""},
		"retry after, another": {after60s, response(429, "Retry-After", "61"), `want Retry-After: 60, got ["61"]`},
		"retry after, none":    {after60s, response(200), `want Retry-After: 60, got []`},
	} {
		t.Run(name, func(t *testing.T) {
			got := failures(func(tb testing.TB) { test.assert(tb, test.resp) })
			if test.want == "" {
				assert.Empty(t, got)
				return
			}
			assert.Equal(t, []string{test.want}, got)
		})
	}
}

func remaining(n int) func(testing.TB, *http.Response) {
	return func(t testing.TB, resp *http.Response) { ratelimittest.AssertRemaining(t, resp, n) }
}

func after60s(t testing.TB, resp *http.Response) {
	ratelimittest.AssertRetryAfter(t, resp, time.Minute-time.Nanosecond)
}

func TestAClientSaysWhatItCannotDo(t *testing.T) {
	unlimited := gin.New()
	unlimited.GET("/", func(*gin.Context) {})
	got := failures(func(tb testing.TB) { ratelimittest.NewClient(tb, unlimited).Exhaust("GET", "/") })
	assert.Equal(t, []string{"ratelimittest: Exhaust: 10000 requests for GET / were not limited; does its route come after the limiter, and is the limit lower than that?"}, got)
	got = failures(func(tb testing.TB) { ratelimittest.NewClient(tb, unlimited).From("localhost") })
	assert.Equal(t, []string{`ratelimittest: From: "localhost" is not an IP address`}, got)
}

func TestARecorderKeepsEveryDecision(t *testing.T) {
	rec, store := ratelimittest.NewRecorder(), ratelimittest.NewFaultyStore(nil)
	client := ratelimittest.NewClient(t, app(ratelimit.WithStore(store), ratelimit.WithFailure(ratelimit.FailClosed), ratelimit.WithObserver(rec.Observe), ratelimit.WithLimit(ratelimit.PerMinute(2))))
	_, ok := rec.Last()
	assert.False(t, ok)
	client.Exhaust("GET", "/")
	store.Fail(nil)
	client.Send("POST", "/")
	require.Len(t, rec.Events(), 4)
	assert.Equal(t, "GET /", rec.Events()[0].Route)
	last, ok := rec.Last()
	assert.True(t, ok)
	assert.Equal(t, "POST /", last.Route)
	assert.Equal(t, 1, rec.Failed())
	assert.Equal(t, 2, rec.Allowed())
	assert.Equal(t, 2, rec.Denied())
	rec.Reset()
	assert.Empty(t, rec.Events())
}
