package ratelimit_test

import (
	"testing"

	"github.com/aed328ba/ratelimit"
	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestVerifyReportsEveryRuleThatMatchesNoRouteWithTheNearest(t *testing.T) {
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(100)), ratelimit.WithRoutes(map[string]string{
		"POST /login":      "5/minute",
		"POST /logni":      "1/minute",
		"GET /login":       "2/minute",
		"/users":           "3/minute",
		"/users/:uid":      "4/minute",
		"/amdin/*":         "5/minute",
		"/admin/*":         "6/minute",
		"DELETE /admin/*":  "off",
		"/api/v1/users/*":  "6/minute by param:id",
		"GET /v1/health":   "off",
		"GET /api/v1/none": "7/minute",
	}))
	r := gin.New()
	r.POST("/login", ok)
	r.GET("/api/v1/users", ok)
	r.GET("/api/v1/users/:id", ok)
	r.GET("/api/v1/users/:id/posts", ok)
	r.GET("/api/v1/users/all", ok)
	r.GET("/admin/users", ok)
	r.GET("/healthz", ok)
	assert.EqualError(t, l.Verify(r), `ratelimit: rule "6/minute by param:id" for /api/v1/users/*: the key "param:id" needs a ":id" in the pattern /api/v1/users/all
ratelimit: rule "5/minute" for /amdin/*: no such route is registered; the nearest is "GET /admin/users"
ratelimit: rule "3/minute" for /users: no such route is registered; the nearest is "GET /api/v1/users"
ratelimit: rule "4/minute" for /users/:uid: no such route is registered; the nearest is "GET /api/v1/users/:id"
ratelimit: rule "off" for DELETE /admin/*: no such route is registered; the nearest is "GET /admin/users"
ratelimit: rule "7/minute" for GET /api/v1/none: no such route is registered; the nearest is "GET /api/v1/users"
ratelimit: rule "2/minute" for GET /login: no such route is registered; the nearest is "POST /login"
ratelimit: rule "off" for GET /v1/health: no such route is registered; the nearest is "GET /healthz"
ratelimit: rule "1/minute" for POST /logni: no such route is registered; the nearest is "POST /login"`)
}

func TestVerifyAsksOfAllEnginesTogether(t *testing.T) {
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(100)), ratelimit.WithRoutes(map[string]string{"/a": "1/minute", "/b": "off"}))
	one, two := routed(l, "GET /a"), routed(l, "GET /b")
	l.Annotate(one, "2/minute").Any("/c", ok)
	require.NoError(t, l.Verify(one, two))
	assert.EqualError(t, l.Verify(two), `ratelimit: rule "1/minute" for /a: no such route is registered; the nearest is "GET /b"
ratelimit: rule "2/minute" for /c: no such route is registered; the nearest is "GET /b"`)
	assert.EqualError(t, l.Verify(gin.New()), `ratelimit: rule "1/minute" for /a: no such route is registered, nor any other
ratelimit: rule "off" for /b: no such route is registered, nor any other
ratelimit: rule "2/minute" for /c: no such route is registered, nor any other`)
	assert.EqualError(t, l.Verify(nil), "ratelimit: Verify: the engine is nil")
}

func TestTheTableShowsWhatHoldsOnEachRoute(t *testing.T) {
	plain, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(100)))
	assert.Equal(t, ratelimit.Table{{
		Method: "GET", Pattern: "/", Limits: []ratelimit.Limit{ratelimit.PerMinute(100)}, Key: "ip", Cost: 1, Budget: "default", Source: "default",
	}}, plain.Table(engine()))

	l, _ := limited(t, ratelimit.WithName("api"), ratelimit.WithLimit(ratelimit.PerMinute(100)), ratelimit.WithCost(func(*gin.Context) int { return 1 }),
		ratelimit.WithKeyFunc(ratelimit.KeyByHeader("X-API-Key")),
		ratelimit.WithLimitFunc(func(*gin.Context) []ratelimit.Limit { return nil }),
		ratelimit.WithRoutes(map[string]string{
			"/admin/*": "10/second, 1000/hour by ip+route using token-bucket cost 5", "GET /healthz": "off", "GET /try": "5/m as try dry-run",
		}))
	r := routed(l, "GET /", "GET /healthz", "GET /try", "POST /admin/users/:id", "GET /admin/users/:id")
	l.Annotate(r, "5/minute by ip as login").POST("/login", ok)
	assert.Equal(t, `METHOD  PATTERN           LIMITS                        KEY               ALGORITHM     COST         BUDGET              FROM
GET     /                 by function, else 100/minute  header:X-Api-Key  fixed-window  by function  api                 default
GET     /admin/users/:id  10/second, 1000/hour          ip+route          token-bucket  5            api /admin/*        row /admin/*
POST    /admin/users/:id  10/second, 1000/hour          ip+route          token-bucket  5            api /admin/*        row /admin/*
GET     /healthz          off                           -                 -             -            -                   row GET /healthz
POST    /login            5/minute                      ip                fixed-window  by function  api as login        annotation
GET     /try              5/minute (dry-run)            header:X-Api-Key  fixed-window  by function  api dry-run as try  row GET /try
`, l.Table(r).String())
}

func TestTheTableNamesEveryKindOfKey(t *testing.T) {
	custom := func(*gin.Context) string { return "" }
	for want, key := range map[string]ratelimit.KeyFunc{
		"global":                      ratelimit.KeyGlobal(),
		"custom":                      custom,
		"ip+custom":                   ratelimit.JoinKeys(ratelimit.KeyByIP(), custom),
		"first(user:id, cookie:sid)":  ratelimit.FirstKey(ratelimit.KeyByUser("id"), ratelimit.KeyByCookie("sid")),
		"query:q+param:id+header:X-A": ratelimit.JoinKeys(ratelimit.KeyByQuery("q"), ratelimit.KeyByParam("id"), ratelimit.KeyByHeader("x-a")),
	} {
		l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(1)), ratelimit.WithKeyFunc(key))
		assert.Equal(t, want, l.Table(engine())[0].Key)
	}
}
