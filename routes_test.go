package ratelimit_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aed328ba/ratelimit"
	"github.com/gin-gonic/gin"
	"github.com/gin-gonic/gin/binding"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func ok(c *gin.Context) { c.String(http.StatusOK, "ok") }

// routed returns an engine behind limits with routes given as "METHOD pattern".
func routed(limits *ratelimit.Limiter, routes ...string) *gin.Engine {
	r := gin.New()
	r.Use(limits.Middleware())
	for _, text := range routes {
		method, pattern, _ := strings.Cut(text, " ")
		r.Handle(method, pattern, ok)
	}
	return r
}

// limitOf sends a request, given as "METHOD target", and returns the limit in
// its headers; "" is none.
func limitOf(r http.Handler, request string, headers ...string) string {
	method, target, _ := strings.Cut(request, " ")
	return send(r, method, target, headers...).Header.Get("X-RateLimit-Limit")
}

func TestTheMostSpecificRowOfARouteCounts(t *testing.T) {
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(100)), ratelimit.WithRoutes(map[string]string{
		"/*":               "1/minute",
		"/admin/*":         "2/minute",
		"POST /admin/*":    "3/minute",
		"/admin/users/*":   "4/minute",
		"/admin/users":     "5/minute",
		"GET /admin/users": "6/minute",
		"get  /search":     "7/minute",
		"/users/:id":       "8/minute",
		"/files/*path":     "9/minute",
		"/slash/":          "10/minute",
	}))
	r := routed(l, "GET /", "GET /x", "GET /admin", "GET /admin/", "GET /admin/a", "POST /admin/a/b", "POST /admin/users/7", "GET /admin/users/7",
		"POST /admin/users", "GET /admin/users", "GET /search", "POST /search", "GET /users/:id", "GET /users/:id/posts", "GET /files/*path", "GET /slash/")
	for request, want := range map[string]string{
		"GET /":                "1",
		"GET /x":               "1",
		"GET /admin":           "1", // not below /admin/
		"GET /admin/":          "2",
		"GET /admin/a":         "2",
		"POST /admin/a/b":      "3",
		"POST /admin/users/7":  "4", // longer before method
		"GET /admin/users/7":   "4",
		"POST /admin/users":    "5", // exact before wildcard
		"GET /admin/users":     "6",
		"GET /search":          "7",
		"POST /search":         "1",
		"GET /users/7":         "8",
		"GET /users/7/posts":   "1",
		"GET /files/a/b":       "9",
		"GET /slash/":          "10",
		"GET /nowhere/at/all":  "100",
		"DELETE /admin/users":  "100",
		"GET /users/7/posts/1": "100",
	} {
		assert.Equal(t, want, limitOf(r, request), request)
	}
}

func TestARuleReplacesTheLimitersDefaultAndLeavesUnsaidWhatItDoesNotMention(t *testing.T) {
	var events recorder
	l, _ := limited(t,
		ratelimit.WithLimit(ratelimit.PerMinute(100)),
		ratelimit.WithLimitFunc(func(*gin.Context) []ratelimit.Limit { return []ratelimit.Limit{ratelimit.PerMinute(50)} }),
		ratelimit.WithAlgorithm(ratelimit.SlidingWindowLog),
		ratelimit.WithKeyFunc(ratelimit.KeyByHeader("X-Key")),
		ratelimit.WithCost(func(*gin.Context) int { return 3 }),
		ratelimit.WithObserver(events.observe),
		ratelimit.WithRoutes(map[string]string{"/a": "10/minute", "/b": "20/minute by ip using token-bucket cost 7"}),
	)
	r := routed(l, "GET /a", "GET /b", "GET /c")
	type want struct{ limit, remaining, key string }
	for path, want := range map[string]want{
		"/a": {"10", "7", "header:X-Key=k"},
		"/b": {"20", "13", "ip:192.0.2.1"},
		"/c": {"50", "47", "header:X-Key=k"},
	} {
		resp := send(r, "GET", path, "X-Key: k")
		assert.Equal(t, want.limit, resp.Header.Get("X-RateLimit-Limit"), path)
		assert.Equal(t, want.remaining, resp.Header.Get("X-RateLimit-Remaining"), path)
		e := events.events[len(events.events)-1]
		budget := "default"
		if path != "/c" {
			budget += " " + path
		}
		assert.Equal(t, budget, e.Policy)
		assert.Equal(t, "default", e.Limiter)
	}

	keys := map[string]string{}
	r = gin.New()
	_ = r.SetTrustedProxies(nil)
	for _, path := range []string{"/a", "/b", "/c"} {
		r.GET(path, func(c *gin.Context) { keys[path] = l.Key(c) })
		send(r, "GET", path, "X-Key: k")
	}
	assert.Equal(t, map[string]string{"/a": "header:X-Key=k", "/b": "ip:192.0.2.1", "/c": "header:X-Key=k"}, keys, "Key is that of the route's rule")
}

func TestOffExemptsFromThisLimiterOnly(t *testing.T) {
	cost := 0
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(1)), ratelimit.WithRoutes(map[string]string{"GET /healthz": "off"}),
		ratelimit.WithCost(func(*gin.Context) int { cost++; return 1 }))
	other, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(3)))
	r := gin.New()
	r.Use(l.Middleware(), other.Middleware())
	r.GET("/healthz", ok)
	for _, want := range []int{200, 200, 200, 429} {
		assert.Equal(t, want, send(r, "GET", "/healthz").StatusCode)
	}
	assert.Zero(t, cost, "nothing is asked about what is not counted")
}

func TestEachRowHasABudgetOfItsOwnAndANameMakesSeveralShareOne(t *testing.T) {
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(3)), ratelimit.WithRoutes(map[string]string{
		"POST /a":  "3/minute",
		"GET /a":   "3/minute",
		"/any":     "3/minute",
		"/below/*": "3/minute",
		"/x":       "3/minute as login",
		"/y":       "3/minute as login",
	}))
	r := routed(l, "POST /a", "GET /a", "GET /any", "POST /any", "GET /below/1", "GET /below/2", "GET /x", "GET /y", "GET /other")
	for _, step := range []struct{ request, remaining string }{
		{"GET /other", "2"},
		{"POST /a", "2"},
		{"GET /a", "2"},
		{"GET /any", "2"},
		{"POST /any", "1"}, // one row, one budget
		{"GET /below/1", "2"},
		{"GET /below/2", "1"},
		{"GET /x", "2"},
		{"GET /y", "1"},
		{"GET /nowhere", "1"}, // with /other
	} {
		method, target, _ := strings.Cut(step.request, " ")
		assert.Equal(t, step.remaining, send(r, method, target).Header.Get("X-RateLimit-Remaining"), step.request)
	}
}

func TestADryRunRuleDecidesAndIsObservedButTouchesNothing(t *testing.T) {
	var events recorder
	l, _ := limited(t, ratelimit.WithName("api"), ratelimit.WithLimit(ratelimit.PerMinute(100)), ratelimit.WithObserver(events.observe),
		ratelimit.WithRoutes(map[string]string{"/x": "1/minute dry-run"}))
	r := routed(l, "GET /x")
	for i, allowed := range []bool{true, false, false} {
		resp := send(r, "GET", "/x")
		assert.Equal(t, 200, resp.StatusCode)
		assert.Empty(t, headersOf(resp))
		e := events.events[i]
		assert.Equal(t, allowed, e.Result.Allowed)
		assert.True(t, e.DryRun)
		assert.Equal(t, "api dry-run /x", e.Policy)
	}
	require.NoError(t, l.SetRoutes(map[string]string{"/x": "1/minute"}))
	assert.Equal(t, 200, send(r, "GET", "/x").StatusCode, "what is enforced was not touched")
	assert.Equal(t, 429, send(r, "GET", "/x").StatusCode)
	assert.False(t, events.events[3].DryRun)
}

func TestARuleOfALimiterInDryRunIsADryRun(t *testing.T) {
	var events recorder
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(100)), ratelimit.WithDryRun(), ratelimit.WithObserver(events.observe),
		ratelimit.WithRoutes(map[string]string{"/x": "1/minute"}))
	r := routed(l, "GET /x")
	for range 2 {
		assert.Equal(t, 200, send(r, "GET", "/x").StatusCode)
	}
	assert.Equal(t, "default (dry-run) /x", events.events[1].Policy)
	assert.True(t, events.events[1].DryRun)
	assert.False(t, events.events[1].Result.Allowed)
}

// Point by point what each request falls under that is not spelled like its
// route.
func TestNothingIsUnlimitedOrHasAFreshBudgetByItsSpelling(t *testing.T) {
	const unmatched = "100"
	rules := map[string]string{"GET /users/:id": "5/minute", "POST /login": "6/minute", "/static/*": "7/minute"}
	for name, test := range map[string]struct {
		prepare func(*gin.Engine)
		want    map[string]string // "" is a redirect of Gin's, before any middleware
	}{
		"as Gin is by default": {func(*gin.Engine) {}, map[string]string{
			"GET /users/1":          "5",
			"GET /users/2?x=1":      "5",
			"GET /users/a%20b":      "5",
			"GET /users/a%2Fb":      unmatched, // decoded: another segment
			"GET /users/1/":         "",
			"GET /users//1":         unmatched,
			"GET //users/1":         unmatched,
			"GET /Users/1":          unmatched,
			"GET /users/":           unmatched,
			"GET /users":            unmatched,
			"HEAD /users/1":         unmatched,
			"OPTIONS /users/1":      unmatched,
			"DELETE /users/1":       unmatched,
			"get /users/1":          unmatched,
			"INVENTED /users/1":     unmatched,
			"GET /login":            unmatched,
			"POST /login/":          "",
			"POST /LOGIN":           unmatched,
			"POST /login":           "6",
			"GET /static/a":         "7",
			"GET /static/a/b":       "7",
			"GET /static/../secret": "7", // a parameter of the route, whatever is in it
			"GET /nowhere":          unmatched,
		}},
		"with every redirect": {func(r *gin.Engine) { r.RedirectFixedPath = true }, map[string]string{
			"GET //users/1": "", "GET /Users/1": "", "POST /LOGIN": "", "GET /users/1/": "", "GET /users/1": "5", "GET /nowhere": unmatched,
		}},
		"without redirects": {func(r *gin.Engine) { r.RedirectTrailingSlash = false }, map[string]string{
			"GET /users/1/": unmatched, "POST /login/": unmatched,
		}},
		"with 405": {func(r *gin.Engine) { r.HandleMethodNotAllowed = true }, map[string]string{
			"DELETE /users/1": unmatched, "GET /login": unmatched, "HEAD /users/1": unmatched, "OPTIONS /login": unmatched, "GET /nowhere": unmatched,
		}},
		"with raw paths": {func(r *gin.Engine) { r.UseRawPath = true }, map[string]string{
			"GET /users/a%2Fb": "5", "GET /users/a%2fb": "5", "GET /users%2F1": unmatched, "GET /static/a%2Fb": "7",
		}},
		"with escaped paths": {func(r *gin.Engine) { r.UseEscapedPath = true }, map[string]string{
			"GET /users/a%2Fb": "5", "GET /users/a%20b": "5", "GET /users%2F1": unmatched,
		}},
		"with extra slashes removed": {func(r *gin.Engine) { r.RemoveExtraSlash = true }, map[string]string{
			"GET //users//1": "5", "GET /users/1": "5", "POST //login": "6",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(100)), ratelimit.WithRoutes(rules))
			r := routed(l)
			test.prepare(r)
			r.GET("/users/:id", ok)
			r.POST("/login", ok)
			r.GET("/static/*file", ok)
			require.NoError(t, l.Verify(r))

			left := map[string]int{"5": 5, "6": 6, "7": 7, unmatched: 100}
			for request, want := range test.want {
				method, target, _ := strings.Cut(request, " ")
				resp := send(r, method, target)
				assert.Equal(t, want, resp.Header.Get("X-RateLimit-Limit"), request)
				if want == "" {
					assert.Contains(t, []int{301, 307}, resp.StatusCode, request)
					continue
				}
				// All spellings count down one budget.
				if left[want]--; left[want] >= 0 {
					assert.Equal(t, left[want], atoi(resp.Header.Get("X-RateLimit-Remaining")), request)
				} else {
					assert.Equal(t, 429, resp.StatusCode, request)
				}
			}
		})
	}
}

func TestAColonThatIsNoParameterHasItsRule(t *testing.T) {
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(100)), ratelimit.WithRoutes(map[string]string{`POST /v1/a\:run`: "5/minute", "POST /v1/b:run": "6/minute"}))
	r := routed(l, `POST /v1/a\:run`, `POST /v1/b\:run`)
	l.Annotate(r, "7/minute").POST(`/v1/c\:run`, ok)
	for range 2 { // Gin changes the patterns of its routes with the first request
		require.NoError(t, l.Verify(r))
		table := l.Table(r)
		for i, want := range []string{"5", "6", "7"} {
			assert.Equal(t, want+"/minute", table[i].Limits[0].String())
			assert.Equal(t, want, limitOf(r, "POST "+[]string{"/v1/a:run", "/v1/b:run", "/v1/c:run"}[i]))
		}
	}
}

func TestARegisteredHEADOrOPTIONSRouteIsLimitedAndAPreflightPasses(t *testing.T) {
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(100)), ratelimit.WithRoutes(map[string]string{"/x": "2/minute"}))
	r := routed(l, "GET /x", "HEAD /x", "OPTIONS /x")
	assert.Equal(t, "2", limitOf(r, "HEAD /x"))
	assert.Equal(t, "2", limitOf(r, "OPTIONS /x"))
	assert.Equal(t, http.StatusTooManyRequests, send(r, "GET", "/x").StatusCode)
	assert.Equal(t, "", limitOf(r, "OPTIONS /x", "Origin: https://a.example", "Access-Control-Request-Method: GET"))
}

func TestAPreflightOfARouteWithARuleForOPTIONSCounts(t *testing.T) {
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(100)), ratelimit.WithRoutes(map[string]string{"OPTIONS /row": "2/minute"}))
	r := routed(l, "OPTIONS /row", "OPTIONS /default")
	l.Annotate(r, "2/minute").Any("/any", ok)
	for path, want := range map[string][]int{"/row": {200, 200, 429}, "/any": {200, 200, 429}, "/default": {200, 200, 200}} {
		for _, status := range want {
			assert.Equal(t, status, send(r, "OPTIONS", path, "Origin: https://a.example", "Access-Control-Request-Method: GET").StatusCode, path)
		}
	}
}

func TestATableThatCannotBeMeantIsAnErrorThatNamesRouteAndRule(t *testing.T) {
	const form = `a route is written like "POST /login", "/search" or "/admin/*"`
	const known = "(use GET, HEAD, POST, PUT, PATCH, DELETE, CONNECT, OPTIONS, TRACE, or none for any)"
	for want, table := range map[string]map[string]string{
		`rule "5/fortnight" for POST /login: unknown unit "fortnight" (use s, m, h or d)`: {"POST /login": "5/fortnight"},
		`rule "" for /a: the rule is empty; write limits like "5/minute by ip", or "off"`: {"/a": ""},
		`route "": ` + form:          {"": "off"},
		`route "GET /a /b": ` + form: {"GET /a /b": "off"},
		`route "POST login": the pattern "login" does not begin with "/"; ` + form:                                               {"POST login": "off"},
		`route "PSOT /login": unknown method "PSOT" ` + known + `; did you mean "POST"?`:                                         {"PSOT /login": "off"},
		`route "ANY /login": unknown method "ANY" ` + known:                                                                      {"ANY /login": "off"},
		`route "/admin*": a "*" stands for all that is below a "/"; did you mean "/admin/*"?`:                                    {"/admin*": "off"},
		`route "//a": no pattern in Gin is spelled "//a"; did you mean "/a"?`:                                                    {"//a": "off"},
		`route "/a/../b/": no pattern in Gin is spelled "/a/../b/"; did you mean "/b/"?`:                                         {"/a/../b/": "off"},
		`rule "6/minute" for POST /a: the table has another row for it, with "5/minute"; keep one of the two`:                    {"POST /a": "5/minute", "post /a": "6/minute"},
		`rule "off" for GET /a/*: the table has another row for it, with "5/minute"; keep one of the two`:                        {"get /a/*": "off", "GET /a/*": "5/minute"},
		`rule "5/minute by param:id" for /users: the key "param:id" needs a ":id" in the pattern /users`:                         {"/users": "5/minute by param:id"},
		`rule "5/minute by ip+param:id" for /u/:name: the key "param:id" needs a ":id" in the pattern /u/:name; it has ["name"]`: {"/u/:name": "5/minute by ip+param:id"},
		`rule "6/minute as login" for /b: "as login" is "5/minute as login" for /a; rules that share a name must be the same`:    {"/a": "5/minute as login", "/b": "6/minute as login"},
		`rule "5/minute cost 6" for /a: cost 6 is more than 5/minute ever admits at once`:                                        {"/a": "5/minute cost 6"},
		`rule "5/s burst 9" for /a: a burst means nothing to fixed-window; add "using token-bucket", or leave it out`:            {"/a": "5/s burst 9"},
		`rule "5/s, 5/m" for /a: WithMaxKeys: 1 keys cannot hold the 2 limits of one client; use more`:                           {"/a": "5/s, 5/m"},
	} {
		_, err := ratelimit.NewLimiter(ratelimit.WithLimit(ratelimit.PerMinute(1)), ratelimit.WithRoutes(table),
			ratelimit.WithStore(ratelimit.NewMemoryStore(ratelimit.WithMaxKeys(1))))
		assert.EqualError(t, err, "ratelimit: "+want)
	}
	_, err := ratelimit.NewLimiter(ratelimit.WithLimit(ratelimit.PerMinute(1)), ratelimit.WithAlgorithm(ratelimit.SlidingWindowLog),
		ratelimit.WithRoutes(map[string]string{"/a": "200000/hour"}))
	assert.EqualError(t, err, `ratelimit: rule "200000/hour" for /a: limit "200000/hour": a sliding-window-log keeps a record of every request, at most 100000; use SlidingWindowCounter or TokenBucket`)

	_, err = ratelimit.NewLimiter(ratelimit.WithRoutes(map[string]string{"/a": "x", "/b": "y", "c": "off"}))
	assert.Equal(t, 4, strings.Count(err.Error(), "ratelimit: "), "one error names every fault: %v", err)
}

func TestRulesUnderOneNameMayDifferInSpellingButNotInWhatTheyDo(t *testing.T) {
	for second, same := range map[string]bool{
		"5/m by ip as x": true, "5 per minute using fixed-window as x": true,
		"6/minute as x": false, "5/minute by global as x": false, "5/minute using token-bucket as x": false,
		"5/minute cost 2 as x": false, "5/minute dry-run as x": false, "5/minute as y": true,
	} {
		_, err := ratelimit.NewLimiter(ratelimit.WithLimit(ratelimit.PerMinute(1)), ratelimit.WithRoutes(map[string]string{"/a": "5/minute as x", "/b": second}))
		assert.Equal(t, same, err == nil, second)
	}
}

func TestATableComesFromJSONAndYAMLAsItIs(t *testing.T) {
	var fromJSON, fromYAML map[string]string
	require.NoError(t, json.Unmarshal([]byte(`{"POST /login": "5/minute by ip", "/admin/*": "10/minute", "GET /healthz": "off"}`), &fromJSON))
	require.NoError(t, binding.YAML.BindBody([]byte("POST /login: 5/minute by ip\n/admin/*: 10/minute\nGET /healthz: off\n"), &fromYAML))
	assert.Equal(t, fromJSON, fromYAML)
	for _, table := range []map[string]string{fromJSON, fromYAML} {
		l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(100)), ratelimit.WithRoutes(table))
		r := routed(l, "POST /login", "GET /admin/a", "GET /healthz")
		assert.Equal(t, "5", limitOf(r, "POST /login"))
		assert.Equal(t, "10", limitOf(r, "GET /admin/a"))
		assert.Equal(t, "", limitOf(r, "GET /healthz"))
	}
}

func TestSetRoutesReplacesTheTableAtOnceAndKeepsTheCountsOfWhatStays(t *testing.T) {
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(100)), ratelimit.WithRoutes(map[string]string{
		"/stays": "5/minute", "/grows": "5/minute", "/goes": "5/minute",
	}))
	r := routed(l, "GET /stays", "GET /grows", "GET /goes", "GET /comes")
	remaining := func(path string) string {
		return send(r, "GET", path).Header.Get("X-RateLimit-Remaining")
	}
	for _, path := range []string{"/stays", "/grows", "/goes"} {
		assert.Equal(t, "4", remaining(path))
	}
	assert.Equal(t, "99", remaining("/comes"))

	err := l.SetRoutes(map[string]string{"/stays": "7/minute", "/goes": "7/fortnight", "comes": "off"})
	assert.EqualError(t, err, `ratelimit: rule "7/fortnight" for /goes: unknown unit "fortnight" (use s, m, h or d)
ratelimit: route "comes": the pattern "comes" does not begin with "/"; a route is written like "POST /login", "/search" or "/admin/*"`)
	assert.Equal(t, "3", remaining("/stays"), "on an error nothing changes")

	require.NoError(t, l.SetRoutes(map[string]string{"/stays": "5/minute", "/grows": "9/minute", "/comes": "2/minute"}))
	assert.Equal(t, "2", remaining("/stays"))
	assert.Equal(t, "7", remaining("/grows"), "the count goes on under the new number")
	assert.Equal(t, "98", remaining("/goes"))
	assert.Equal(t, "1", remaining("/comes"))

	require.NoError(t, l.SetRoutes(nil))
	assert.Equal(t, "97", remaining("/stays"))
}

func TestSetRoutesWhileServingLeavesNoRequestUnlimited(t *testing.T) {
	tables := []map[string]string{{"/x": "1000000/minute", "/y": "2000000/minute"}, {"/*": "3000000/minute"}}
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(100)), ratelimit.WithRoutes(tables[0]))
	r := routed(l, "GET /x")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				assert.Contains(t, []string{"1000000", "3000000"}, limitOf(r, "GET /x"))
			}
		})
	}
	for i := range 100 {
		require.NoError(t, l.SetRoutes(tables[i%2]))
	}
	wg.Wait()
}

func TestResetUnblocksAKeyUnderEveryRule(t *testing.T) {
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(1)), ratelimit.WithRoutes(map[string]string{
		"/a": "1/minute", "/b": "1/hour using token-bucket", "/off": "off", "/c": "1/minute as n", "/d": "1/minute as n",
	}))
	r := routed(l, "GET /", "GET /a", "GET /b", "GET /c", "GET /d", "GET /off")
	paths := []string{"/", "/a", "/b", "/c"}
	for _, path := range paths {
		send(r, "GET", path)
		assert.Equal(t, 429, send(r, "GET", path).StatusCode)
	}
	require.NoError(t, l.Reset(context.Background(), "ip:192.0.2.1"))
	for _, path := range paths {
		assert.Equal(t, 200, send(r, "GET", path).StatusCode, path)
	}
}

func TestResetUnblocksAKeyUnderWhatTheFunctionHasChosen(t *testing.T) {
	plan := ratelimit.PerMinute(3)
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(100)), ratelimit.WithLimitFunc(func(*gin.Context) []ratelimit.Limit { return []ratelimit.Limit{plan} }))
	r := engine(l.Middleware())
	plans := []ratelimit.Limit{plan, ratelimit.PerHour(4), ratelimit.PerHour(5), ratelimit.PerDay(6)}
	for _, plan = range plans {
		for get(r).StatusCode == 200 {
		}
	}
	require.NoError(t, l.Reset(context.Background(), "ip:192.0.2.1"))
	for _, plan = range plans {
		assert.Equal(t, 200, get(r).StatusCode, plan)
	}
}

func TestResetReportsWhereItFailed(t *testing.T) {
	fails := &failingReset{Store: ratelimit.NewMemoryStore()}
	l, _ := limited(t, ratelimit.WithStore(fails), ratelimit.WithLimit(ratelimit.PerMinute(1)), ratelimit.WithRoutes(map[string]string{"/a": "1/minute", "/b": "1/minute"}))
	assert.EqualError(t, l.Reset(context.Background(), "k"), "ratelimit: the store is unavailable: no default /b")
	assert.Equal(t, []string{"default", "default /a", "default /b"}, fails.asked)
}

// failingReset is a store that cannot reset the budget "default /b".
type failingReset struct {
	ratelimit.Store
	asked []string
}

func (s *failingReset) Reset(_ context.Context, p *ratelimit.Policy, _ string) error {
	if s.asked = append(s.asked, p.Name()); p.Name() == "default /b" {
		return errors.New("no " + p.Name())
	}
	return nil
}

func TestRefundGoesToTheBudgetOfTheRoute(t *testing.T) {
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(1)), ratelimit.WithRefund(func(*gin.Context) bool { return true }),
		ratelimit.WithRoutes(map[string]string{"/a": "1/minute"}))
	r := routed(l, "GET /a")
	for range 3 {
		assert.Equal(t, 200, send(r, "GET", "/a").StatusCode)
	}
}

func TestOneLimiterServesSeveralEngines(t *testing.T) {
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(100)), ratelimit.WithRoutes(map[string]string{"/a": "2/minute"}))
	one, two := routed(l, "GET /a"), routed(l, "GET /a", "GET /b")
	assert.Equal(t, 200, send(one, "GET", "/a").StatusCode)
	assert.Equal(t, 200, send(two, "GET", "/a").StatusCode)
	assert.Equal(t, 429, send(one, "GET", "/a").StatusCode, "one limiter, one budget")
	assert.Equal(t, "100", limitOf(two, "GET /b"))
}

func TestFindingARuleAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates; CI runs this without it too")
	}
	options := []ratelimit.Option{ratelimit.WithLimit(ratelimit.PerHour(1_000_000))}
	plain := must(ratelimit.NewLimiter(options...))
	ruled := must(ratelimit.NewLimiter(append(options, ratelimit.WithRoutes(map[string]string{
		"GET /exact": "1000000/hour", "/any": "1000000/hour", "/a/*": "1000000/hour", "POST /*": "1000000/hour",
	}))...))
	allocations := func(l *ratelimit.Limiter, path string) float64 {
		r := routed(l, "GET "+path)
		req := httptest.NewRequest(http.MethodGet, path, nil)
		w := &nullWriter{header: http.Header{}}
		return testing.AllocsPerRun(300, func() { r.ServeHTTP(w, req) })
	}
	for _, path := range []string{"/exact", "/any", "/a/b/c/d/e", "/none"} {
		assert.InDelta(t, allocations(plain, path), allocations(ruled, path), 0, path)
	}
}

func BenchmarkRuleLookup(b *testing.B) {
	for _, bench := range []struct{ name, rule string }{{"none", ""}, {"exact", "GET /a/b/c/d"}, {"below", "/a/*"}} {
		b.Run(bench.name, func(b *testing.B) {
			table := map[string]string{}
			if bench.rule != "" {
				table[bench.rule] = "2000000000/h"
			}
			l := must(ratelimit.NewLimiter(ratelimit.WithLimit(ratelimit.Per(2_000_000_000, time.Hour)), ratelimit.WithRoutes(table)))
			r := routed(l, "GET /a/b/c/d")
			req := httptest.NewRequest(http.MethodGet, "/a/b/c/d", nil)
			w := &nullWriter{header: http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				clear(w.header)
				r.ServeHTTP(w, req)
			}
		})
	}
}

func TestNoTwoRulesOfLimitersOnOneStoreShareABudgetByAccident(t *testing.T) {
	store := ratelimit.NewMemoryStore()
	table := map[string]string{"/login": "9/minute", "POST /login": "9/minute", "/x": "9/minute as /login", "/y": "9/minute as POST", "/dry": "9/minute dry-run as login"}
	budgets := map[string]bool{}
	count := 0
	for _, options := range [][]ratelimit.Option{{}, {ratelimit.WithDryRun()}, {ratelimit.WithName("api")}, {ratelimit.WithName("api"), ratelimit.WithDryRun()}} {
		l, _ := limited(t, append(options, ratelimit.WithLimit(ratelimit.PerMinute(9)), ratelimit.WithStore(store), ratelimit.WithRoutes(table))...)
		for _, row := range l.Table(routed(l, "GET /", "GET /login", "POST /login", "GET /x", "GET /y", "GET /dry")) {
			budgets[row.Budget] = true
			count++
		}
	}
	assert.Len(t, budgets, count, "%v", budgets)
}
