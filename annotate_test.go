package ratelimit_test

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/aed328ba/ratelimit"
	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAnAnnotatedRouteIsLimitedOnceWhereverTheMiddlewareStands(t *testing.T) {
	for name, prepare := range map[string]func(*gin.Engine, *ratelimit.Limiter){
		"in the chain":     func(r *gin.Engine, l *ratelimit.Limiter) { r.Use(l.Middleware()) },
		"not in the chain": func(*gin.Engine, *ratelimit.Limiter) {},
		"twice":            func(r *gin.Engine, l *ratelimit.Limiter) { r.Use(l.Middleware(), l.Middleware()) },
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(100)))
			r := gin.New()
			prepare(r, l)
			l.Annotate(r, "3/minute").GET("/a", ok)
			r.GET("/b", ok)
			for _, remaining := range []string{"2", "1", "0"} {
				assert.Equal(t, remaining, send(r, "GET", "/a").Header.Get("X-RateLimit-Remaining"))
			}
			assert.Equal(t, 429, send(r, "GET", "/a").StatusCode)
			want := "100"
			if name == "not in the chain" {
				want = ""
			}
			assert.Equal(t, want, limitOf(r, "GET /b"), "other routes are as they were")
		})
	}
}

func TestAnAnnotatedRouterRegistersEveryKindOfRouteWithTheRule(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "f.txt"), []byte("text"), 0o600))
	files := gin.Dir(dir, false)
	all := []string{"GET", "POST", "PUT", "PATCH", "HEAD", "OPTIONS", "DELETE", "CONNECT", "TRACE"}
	for name, test := range map[string]struct {
		register func(gin.IRoutes) gin.IRoutes
		target   string
		methods  []string
		budget   string
	}{
		"Handle":       {func(r gin.IRoutes) gin.IRoutes { return r.Handle("PROPFIND", "/x", ok) }, "/x", []string{"PROPFIND"}, "PROPFIND /v1/x"},
		"GET":          {func(r gin.IRoutes) gin.IRoutes { return r.GET("/x", ok) }, "/x", []string{"GET"}, "GET /v1/x"},
		"POST":         {func(r gin.IRoutes) gin.IRoutes { return r.POST("/x", ok) }, "/x", []string{"POST"}, "POST /v1/x"},
		"DELETE":       {func(r gin.IRoutes) gin.IRoutes { return r.DELETE("/x", ok) }, "/x", []string{"DELETE"}, "DELETE /v1/x"},
		"PATCH":        {func(r gin.IRoutes) gin.IRoutes { return r.PATCH("/x", ok) }, "/x", []string{"PATCH"}, "PATCH /v1/x"},
		"PUT":          {func(r gin.IRoutes) gin.IRoutes { return r.PUT("/x", ok) }, "/x", []string{"PUT"}, "PUT /v1/x"},
		"OPTIONS":      {func(r gin.IRoutes) gin.IRoutes { return r.OPTIONS("/x", ok) }, "/x", []string{"OPTIONS"}, "OPTIONS /v1/x"},
		"HEAD":         {func(r gin.IRoutes) gin.IRoutes { return r.HEAD("/x", ok) }, "/x", []string{"HEAD"}, "HEAD /v1/x"},
		"Any":          {func(r gin.IRoutes) gin.IRoutes { return r.Any("/x", ok) }, "/x", all, "/v1/x"},
		"Match":        {func(r gin.IRoutes) gin.IRoutes { return r.Match([]string{"GET", "PUT"}, "/x", ok) }, "/x", []string{"GET", "PUT"}, "GET|PUT /v1/x"},
		"StaticFile":   {func(r gin.IRoutes) gin.IRoutes { return r.StaticFile("/f", filepath.Join(dir, "f.txt")) }, "/f", []string{"GET", "HEAD"}, "GET|HEAD /v1/f"},
		"StaticFileFS": {func(r gin.IRoutes) gin.IRoutes { return r.StaticFileFS("/f", "f.txt", files) }, "/f", []string{"GET", "HEAD"}, "GET|HEAD /v1/f"},
		"Static":       {func(r gin.IRoutes) gin.IRoutes { return r.Static("/s", dir) }, "/s/f.txt", []string{"GET", "HEAD"}, "GET|HEAD /v1/s/*filepath"},
		"StaticFS":     {func(r gin.IRoutes) gin.IRoutes { return r.StaticFS("/s", files) }, "/s/f.txt", []string{"GET", "HEAD"}, "GET|HEAD /v1/s/*filepath"},
		"root of it":   {func(r gin.IRoutes) gin.IRoutes { return r.GET("", ok) }, "", []string{"GET"}, "GET /v1"},
		"slash":        {func(r gin.IRoutes) gin.IRoutes { return r.GET("/x/", ok) }, "/x/", []string{"GET"}, "GET /v1/x/"},
		"parameter":    {func(r gin.IRoutes) gin.IRoutes { return r.GET("x/:id", ok) }, "/x/7", []string{"GET"}, "GET /v1/x/:id"},
		"after Use":    {func(r gin.IRoutes) gin.IRoutes { return r.Use(func(*gin.Context) {}).GET("/x", ok) }, "/x", []string{"GET"}, "GET /v1/x"},
		"chained":      {func(r gin.IRoutes) gin.IRoutes { return r.GET("/y", ok).GET("/x", ok) }, "/x", []string{"GET"}, "GET /v1/x"},
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(100)))
			r := gin.New()
			annotated := l.Annotate(r.Group("/v1"), "20/minute")
			assert.Same(t, annotated, test.register(annotated), "calls can be chained")
			require.NoError(t, l.Verify(r))
			remaining := 20
			for _, method := range test.methods {
				resp := send(r, method, "/v1"+test.target)
				remaining--
				assert.Equal(t, 200, resp.StatusCode, method)
				assert.Equal(t, "20", resp.Header.Get("X-RateLimit-Limit"), method)
				assert.Equal(t, remaining, atoi(resp.Header.Get("X-RateLimit-Remaining")), "the methods of one call share a budget")
			}
			for _, row := range l.Table(r) {
				if row.Pattern != "/v1/y" {
					assert.Equal(t, "default "+test.budget, row.Budget)
				}
				assert.Equal(t, "annotation", row.Source)
			}
		})
	}
}

func TestAMissingFileIsLimitedOnceThoughGinStartsTheChainAgain(t *testing.T) {
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(100)))
	r := gin.New()
	r.NoRoute(l.Middleware())
	l.Annotate(r, "2/minute").Static("/s", t.TempDir())
	resp := send(r, "GET", "/s/missing")
	assert.Equal(t, 404, resp.StatusCode)
	assert.Equal(t, "1", resp.Header.Get("X-RateLimit-Remaining"))
}

func TestTheLimiterOfAnAnnotatedRouteStandsAfterTheMiddlewareOfItsGroup(t *testing.T) {
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(100)))
	r := gin.New()
	auth := func(c *gin.Context) { c.Set("user", c.GetHeader("User")) }
	api := r.Group("/api", auth)
	l.Annotate(api.Group("/v1"), "1/minute by user:user").GET("/x", ok)
	assert.Equal(t, 200, send(r, "GET", "/api/v1/x", "User: a").StatusCode)
	assert.Equal(t, 429, send(r, "GET", "/api/v1/x", "User: a").StatusCode)
	assert.Equal(t, 200, send(r, "GET", "/api/v1/x", "User: b").StatusCode)

	annotated := l.Annotate(r.Group("/late"), "1/minute by user:user")
	annotated.Use(auth).GET("/x", ok)
	assert.Equal(t, 200, send(r, "GET", "/late/x", "User: a").StatusCode)
	assert.Equal(t, 200, send(r, "GET", "/late/x", "User: b").StatusCode)
}

func TestAnnotatingAgainReplacesTheRuleOfOneLimiterAndAddsThatOfAnother(t *testing.T) {
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(100)))
	other, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(100)), ratelimit.WithHeaders(ratelimit.HeadersDraft6))
	r := gin.New()
	group := l.Annotate(r, "5/minute")
	group.GET("/a", ok)
	l.Annotate(other.Annotate(group, "7/minute"), "off").GET("/b", ok)
	other.Annotate(group, "3/minute").GET("/c", ok)

	assert.Equal(t, "5", limitOf(r, "GET /a"))
	b, c := send(r, "GET", "/b"), send(r, "GET", "/c")
	assert.Equal(t, "", b.Header.Get("X-RateLimit-Limit"))
	assert.Equal(t, "7", b.Header.Get("RateLimit-Limit"))
	assert.Equal(t, "5", c.Header.Get("X-RateLimit-Limit"))
	assert.Equal(t, "3", c.Header.Get("RateLimit-Limit"))
}

func TestAnAnnotationGoesBeforeARowForEverythingBelow(t *testing.T) {
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(100)), ratelimit.WithRoutes(map[string]string{"/admin/*": "9/minute", "GET /admin/*": "8/minute"}))
	r := gin.New()
	l.Annotate(r.Group("/admin"), "2/minute").GET("/a", ok)
	assert.Equal(t, "2", limitOf(r, "GET /admin/a"))
}

func TestAnnotationsStayWhenTheTableIsReplaced(t *testing.T) {
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(100)), ratelimit.WithRoutes(map[string]string{"/b": "3/minute"}))
	r := routed(l, "GET /b")
	l.Annotate(r, "2/minute").GET("/a", ok)
	assert.Equal(t, "2", limitOf(r, "GET /a"))
	require.NoError(t, l.SetRoutes(map[string]string{"/b": "4/minute"}))
	assert.Equal(t, "4", limitOf(r, "GET /b"))
	assert.Equal(t, "0", send(r, "GET", "/a").Header.Get("X-RateLimit-Remaining"))
	assert.EqualError(t, l.SetRoutes(map[string]string{"GET /a": "4/minute", "/b": "5/minute"}),
		`ratelimit: rule "2/minute" for GET /a: the row "GET /a" of the table has a rule for it too, "4/minute"; keep one of the two`)
	assert.Equal(t, "4", limitOf(r, "GET /b"))
}

func TestARouteOfSeveralEnginesIsAnnotatedOnEach(t *testing.T) {
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(100)))
	one, two := gin.New(), gin.New()
	for _, r := range []*gin.Engine{one, two} {
		l.Annotate(r, "5/minute").GET("/a", ok)
	}
	l.Annotate(two, "6/minute").GET("/b", ok)
	assert.Equal(t, "5", limitOf(one, "GET /a"))
	assert.Equal(t, "5", limitOf(two, "GET /a"))
	require.NoError(t, l.Verify(one, two))
	assert.PanicsWithError(t, `ratelimit: rule "6/minute" for GET /a: the route is annotated already, with "5/minute"; keep one of the two`,
		func() { l.Annotate(gin.New(), "6/minute").GET("/a", ok) })
}

func TestAnAnnotationThatCannotBeMeantPanicsWhereItStands(t *testing.T) {
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(100)), ratelimit.WithRoutes(map[string]string{"POST /tabled": "9/minute", "/search": "9/minute", "/row": "9/minute as row"}))
	r := gin.New()
	l.Annotate(r, "5/minute as shared").GET("/a", ok)
	for want, register := range map[string]func(){
		`ratelimit: rule "5/minuet": unknown unit "minuet" (use s, m, h or d); did you mean "minute"?`: func() { l.Annotate(r, "5/minuet") },
		`ratelimit: rule "5/minute using bucket": unknown algorithm "bucket" (use fixed-window, sliding-window-log, sliding-window-counter, token-bucket)`: func() {
			l.Annotate(r, "5/minute using bucket")
		},
		`ratelimit: rule "5/minute cost 6": cost 6 is more than 5/minute ever admits at once`: func() { l.Annotate(r, "5/minute cost 6") },
		`ratelimit: rule "6/minute" for GET /a: the route is annotated already, with "5/minute as shared"; keep one of the two`: func() {
			l.Annotate(r, "6/minute").GET("/a", ok)
		},
		`ratelimit: rule "6/minute" for /a: the route is annotated already, with "5/minute as shared"; keep one of the two`: func() {
			l.Annotate(r, "6/minute").Any("/a", ok)
		},
		`ratelimit: rule "5/minute" for POST /tabled: the row "POST /tabled" of the table has a rule for it too, "9/minute"; keep one of the two`: func() {
			l.Annotate(r, "5/minute").POST("/tabled", ok)
		},
		`ratelimit: rule "5/minute" for /search: the row "/search" of the table has a rule for it too, "9/minute"; keep one of the two`: func() {
			l.Annotate(r, "5/minute").Any("/search", ok)
		},
		`ratelimit: rule "6/minute as shared" for GET /b: "as shared" is "5/minute as shared" for GET /a; rules that share a name must be the same`: func() {
			l.Annotate(r, "6/minute as shared").GET("/b", ok)
		},
		`ratelimit: rule "6/minute as row" for GET /b: "as row" is "9/minute as row" for /row; rules that share a name must be the same`: func() {
			l.Annotate(r, "6/minute as row").GET("/b", ok)
		},
		`ratelimit: rule "5/minute by param:id" for GET /users/:name: the key "param:id" needs a ":id" in the pattern /users/:name; it has ["name"]`: func() {
			l.Annotate(r, "5/minute by param:id").GET("/users/:name", ok)
		},
		`ratelimit: rule "5/minute" for GET /none: there must be at least one handler`:                              func() { l.Annotate(r, "5/minute").GET("/none") },
		`ratelimit: Annotate: routes cannot be annotated on a <nil>; use an engine or a group`:                      func() { l.Annotate(nil, "5/minute") },
		`ratelimit: Annotate: routes cannot be annotated on a ratelimit_test.otherRouter; use an engine or a group`: func() { l.Annotate(otherRouter{}, "5/minute") },
	} {
		assert.PanicsWithError(t, want, register)
	}
	for _, route := range r.Routes() {
		assert.Equal(t, "/a", route.Path, "nothing else was registered")
	}
	assert.PanicsWithValue(t, "handlers are already registered for path '/a'", func() { l.Annotate(r, "5/minute as shared").GET("/a", ok) }, "Gin's own")
}

type otherRouter struct{ gin.IRoutes }

func TestAParameterMayBeNamedByItsKey(t *testing.T) {
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(100)), ratelimit.WithRoutes(map[string]string{
		"/tenants/:tenant/x": "1/minute by param:tenant", "/files/*path": "1/minute by ip+param:path", "/v:major/x": "1/minute by param:major",
	}))
	r := routed(l, "GET /tenants/:tenant/x", "GET /files/*path", "GET /v:major/x")
	l.Annotate(r, "1/minute by param:id").GET("/users/:id", ok)
	require.NoError(t, l.Verify(r))
	for _, target := range []string{"/users/1", "/users/2", "/tenants/1/x", "/tenants/2/x", "/files/a", "/files/b", "/v1/x", "/v2/x"} {
		assert.Equal(t, http.StatusOK, send(r, "GET", target).StatusCode, target)
		assert.Equal(t, http.StatusTooManyRequests, send(r, "GET", target).StatusCode, target)
	}
}
