package ratelimit_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/aed328ba/ratelimit"
	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// request returns a context for a request as Gin would hand it to a handler of
// route "/users/:id".
func request(prepare func(*gin.Context)) *gin.Context {
	c, e := gin.CreateTestContext(httptest.NewRecorder())
	_ = e.SetTrustedProxies(nil)
	c.Request = httptest.NewRequest(http.MethodGet, "/users/7?q=1&q=2", nil)
	c.Request.RemoteAddr = "203.0.113.7:4711"
	c.Params = gin.Params{{Key: "id", Value: "7"}}
	if prepare != nil {
		prepare(c)
	}
	return c
}

type (
	userID int
	email  string
)

type stringer struct{ text string }

func (s *stringer) String() string { return s.text }

func TestKeysNameTheirKindAndFallBackToTheIPWhereTheyAreMissing(t *testing.T) {
	setHeader := func(name, value string) func(*gin.Context) {
		return func(c *gin.Context) { c.Request.Header.Set(name, value) }
	}
	setUser := func(value any) func(*gin.Context) { return func(c *gin.Context) { c.Set("user", value) } }
	const anonymous = "anonymous:203.0.113.7"
	byUser := ratelimit.KeyByUser("user")

	for name, test := range map[string]struct {
		key     ratelimit.KeyFunc
		prepare func(*gin.Context)
		want    string
	}{
		"ip":                       {ratelimit.KeyByIP(), nil, "ip:203.0.113.7"},
		"header":                   {ratelimit.KeyByHeader("x-api-key"), setHeader("X-API-Key", "secret"), "header:X-Api-Key=secret"},
		"header missing":           {ratelimit.KeyByHeader("X-API-Key"), nil, anonymous},
		"header empty":             {ratelimit.KeyByHeader("X-API-Key"), setHeader("X-API-Key", ""), anonymous},
		"header Host":              {ratelimit.KeyByHeader("Host"), nil, "header:Host=example.com"},
		"cookie":                   {ratelimit.KeyByCookie("sid"), setHeader("Cookie", "a=b; sid=abc"), "cookie:sid=abc"},
		"cookie missing":           {ratelimit.KeyByCookie("sid"), setHeader("Cookie", "a=b"), anonymous},
		"query":                    {ratelimit.KeyByQuery("q"), nil, "query:q=1"},
		"query missing":            {ratelimit.KeyByQuery("p"), nil, anonymous},
		"param":                    {ratelimit.KeyByParam("id"), nil, "param:id=7"},
		"param missing":            {ratelimit.KeyByParam("name"), nil, anonymous},
		"global":                   {ratelimit.KeyGlobal(), nil, "global"},
		"route, unmatched":         {ratelimit.KeyByRoute(), nil, "route:none"},
		"user string":              {byUser, setUser("42"), "user:42"},
		"user int":                 {byUser, setUser(42), "user:42"},
		"user uint64":              {byUser, setUser(uint64(42)), "user:42"},
		"user of a type of int":    {byUser, setUser(userID(42)), "user:42"},
		"user of a type of string": {byUser, setUser(email("a@b")), "user:a@b"},
		"user Stringer":            {byUser, setUser(&stringer{"42"}), "user:42"},
		"user URL":                 {byUser, setUser(&url.URL{Host: "h"}), "user://h"},
		"user nil Stringer":        {byUser, setUser((*stringer)(nil)), anonymous},
		"user empty":               {byUser, setUser(""), anonymous},
		"user missing":             {byUser, nil, anonymous},
		"user of no text":          {byUser, setUser(&struct{ ID int }{42}), anonymous},
		"custom":                   {func(*gin.Context) string { return "42" }, nil, "key:42"},
		"custom like an IP":        {func(*gin.Context) string { return "ip:203.0.113.7" }, nil, "key:ip:203.0.113.7"},
		"custom empty":             {func(*gin.Context) string { return "" }, nil, anonymous},
		"custom calls a built-in":  {func(c *gin.Context) string { return ratelimit.KeyByIP()(c) }, nil, "key:ip:203.0.113.7"},
		"first":                    {ratelimit.FirstKey(byUser, ratelimit.KeyByHeader("X-API-Key")), setHeader("X-API-Key", "k"), "header:X-Api-Key=k"},
		"first of none":            {ratelimit.FirstKey(byUser, ratelimit.KeyByHeader("X-API-Key")), nil, anonymous},
		"join":                     {ratelimit.JoinKeys(ratelimit.KeyByIP(), byUser), setUser("a"), "join:ip:203.0.113.7+user:a"},
		"join, one missing":        {ratelimit.JoinKeys(ratelimit.KeyGlobal(), byUser), nil, "join:global+" + anonymous},
		"join escapes":             {ratelimit.JoinKeys(ratelimit.KeyGlobal(), byUser), setUser("a+ip:1%2B"), "join:global+user:a%2Bip:1%252B"},
		"join of a custom":         {ratelimit.JoinKeys(ratelimit.KeyGlobal(), func(*gin.Context) string { return "x" }), nil, "join:global+key:x"},
		"128 bytes stay":           {byUser, setUser(strings.Repeat("x", 123)), "user:" + strings.Repeat("x", 123)},
		"more are hashed":          {byUser, setUser(strings.Repeat("x", 124)), "hash:"},
		"8 KiB of braces and NULs": {byUser, setUser(strings.Repeat("{\x00", 4096)), ""},
	} {
		t.Run(name, func(t *testing.T) {
			logger, _ := logTo(t)
			l, err := ratelimit.NewLimiter(ratelimit.WithLimit(ratelimit.PerMinute(1)), ratelimit.WithKeyFunc(test.key), ratelimit.WithLogger(logger))
			require.NoError(t, err)
			got := l.Key(request(test.prepare))
			assert.LessOrEqual(t, len(got), 128)
			switch {
			case strings.HasPrefix(test.want, "hash:"):
				assert.Regexp(t, "^hash:[0-9a-f]{32}$", got)
			case test.want != "":
				assert.Equal(t, test.want, got)
			}
		})
	}
}

func TestABuiltInKeyFuncCanBeCalledByItself(t *testing.T) {
	c := request(func(c *gin.Context) { c.Set("user", "42") })
	assert.Equal(t, "ip:203.0.113.7", ratelimit.KeyByIP()(c))
	assert.Equal(t, "user:42", ratelimit.KeyByUser("user")(c))
	assert.Equal(t, "", ratelimit.KeyByHeader("X-API-Key")(c))
	assert.Equal(t, "join:ip:203.0.113.7+user:42", ratelimit.JoinKeys(ratelimit.KeyByIP(), ratelimit.KeyByUser("user"))(c))
}

func TestJoinedKeysOfDifferentPartsAreDifferent(t *testing.T) {
	seen := map[string][2]string{}
	values := []string{"a", "b", "a+b", "a%2Bb", "a:b", "+", "%", "a+user:b", "ip:a", "}{", "\x00"}
	for _, x := range values {
		for _, y := range values {
			key := ratelimit.JoinKeys(ratelimit.KeyByUser("x"), ratelimit.KeyByUser("y"))(request(func(c *gin.Context) {
				c.Set("x", x)
				c.Set("y", y)
			}))
			assert.NotContains(t, seen, key)
			seen[key] = [2]string{x, y}
		}
	}
}

func TestKeyByRouteIsThePatternNotThePath(t *testing.T) {
	l := must(ratelimit.NewLimiter(ratelimit.WithLimit(ratelimit.PerMinute(1)), ratelimit.WithKeyFunc(ratelimit.KeyByRoute())))
	r := gin.New()
	var got string
	r.Use(func(c *gin.Context) { got = l.Key(c) })
	ok := func(c *gin.Context) {}
	r.GET("/users/:id", ok)
	r.POST("/users/:id", ok)
	for request, want := range map[string]string{
		"GET /users/1": "route:GET /users/:id", "GET /users/2?x=1": "route:GET /users/:id", "GET /users/%2F": "", // redirected before any middleware runs

		"POST /users/1": "route:POST /users/:id", "GET /nowhere": "route:none", "DELETE /nowhere": "route:none", "INVENTED /users/1": "route:none",
	} {
		method, target, _ := strings.Cut(request, " ")
		got = ""
		send(r, method, target)
		assert.Equal(t, want, got, request)
	}
}

func TestAUserWithoutTextIsLoggedOnce(t *testing.T) {
	logger, logged := logTo(t)
	l := must(ratelimit.NewLimiter(ratelimit.WithLimit(ratelimit.PerMinute(1)), ratelimit.WithLogger(logger), ratelimit.WithKeyFunc(ratelimit.KeyByUser("user"))))
	for range 3 {
		l.Key(request(func(c *gin.Context) { c.Set("user", &struct{ ID int }{42}) }))
	}
	assert.Equal(t, 1, strings.Count(logged(), "\n"))
	assert.Contains(t, logged(), "has no text to count by")
	assert.NotContains(t, logged(), "203.0.113.7", "no key in the log")
}
