package ratelimit_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/aed328ba/ratelimit"
	"github.com/gin-gonic/gin"
)

// FuzzKeys: two values are two keys of one extractor, whatever a client writes;
// no key of one kind is a key of another; and a missing value is the client's
// address.
func FuzzKeys(f *testing.F) {
	for _, seed := range [][2]string{
		{"a", "b"},
		{"", "a"},
		{"a+query:q=b", "a%2Bquery:q=b"},
		{"ip:203.0.113.7", "anonymous:203.0.113.7"},
		{"{a}", "}a{"},
		{strings.Repeat("x", 128), strings.Repeat("x", 127) + "y"},
		{"hash:00000000000000000000000000000000", "\x00\xff"},
	} {
		f.Add(seed[0], seed[1])
	}
	limiter := func(key ratelimit.KeyFunc) *ratelimit.Limiter {
		return must(ratelimit.NewLimiter(ratelimit.WithLimit(ratelimit.PerMinute(1)), ratelimit.WithKeyFunc(key)))
	}
	header, user, query := ratelimit.KeyByHeader("X-API-Key"), ratelimit.KeyByUser("user"), ratelimit.KeyByQuery("q")
	kinds := map[string]*ratelimit.Limiter{
		"header": limiter(header),
		"user":   limiter(user),
		"query":  limiter(query),
		"cookie": limiter(ratelimit.KeyByCookie("sid")),
		"param":  limiter(ratelimit.KeyByParam("id")),
		"host":   limiter(ratelimit.KeyByHeader("Host")),
		"custom": limiter(func(c *gin.Context) string { return c.GetHeader("X-API-Key") }),
		"join":   limiter(ratelimit.JoinKeys(header)),
	}
	join := limiter(ratelimit.JoinKeys(header, query))
	first := limiter(ratelimit.FirstKey(user, header))
	route := limiter(ratelimit.KeyByRoute())
	engine := gin.New()
	_ = engine.SetTrustedProxies(nil)

	// with returns a context in which every value is the one given, but that
	// of the query.
	with := func(value, inQuery string) *gin.Context {
		c := gin.CreateTestContextOnly(httptest.NewRecorder(), engine)
		c.Request = httptest.NewRequest(http.MethodGet, "/", nil)
		c.Request.RemoteAddr = "203.0.113.7:4711"
		c.Request.Method, c.Request.Host = value, value
		c.Request.URL.RawQuery = url.Values{"q": {inQuery}}.Encode()
		c.Request.Header["X-Api-Key"] = []string{value}
		c.Request.Header["Cookie"] = []string{"sid=" + value}
		c.Params = gin.Params{{Key: "id", Value: value}}
		c.Set("user", value)
		return c
	}
	const anonymous = "anonymous:203.0.113.7"
	fixed := []string{"", anonymous, "ip:203.0.113.7", "global", "route:none", "route:GET /"}

	f.Fuzz(func(t *testing.T, a, b string) {
		owner := map[string]string{} // of each key, its kind and value
		for _, key := range fixed {
			owner[key] = "fixed " + key
		}
		claim := func(key, who string) {
			if len(key) > 128 {
				t.Fatalf("the key of %q has %d bytes: %q", who, len(key), key)
			}
			if other, taken := owner[key]; taken && other != who {
				t.Fatalf("%q and %q have one key, %q", who, other, key)
			}
			owner[key] = who
		}
		values := []string{a, b, a + b, b + a}
		for kind, l := range kinds {
			for _, value := range values {
				c := with(value, value)
				key := l.Key(c)
				if kind == "cookie" { // which has an alphabet of its own
					value = ""
					if cookie, err := c.Request.Cookie("sid"); err == nil {
						value = cookie.Value
					}
				}
				switch missing := "join:" + anonymous; {
				case value != "":
					claim(key, kind+" "+value)
				case kind == "join" && key != missing || kind != "join" && key != anonymous:
					t.Fatalf("without a value, the %s key is %q", kind, key)
				}
			}
		}
		for _, value := range values {
			want := anonymous
			if value != "" {
				want = kinds["user"].Key(with(value, ""))
			}
			if got := first.Key(with(value, "")); got != want {
				t.Fatalf("FirstKey is %q, its first key %q", got, want)
			}
			if got := route.Key(with(value, "")); got != "route:none" {
				t.Fatalf("a client that matches no route chose %q", got)
			}
		}
		// Among the pairs are those that would be one text without escapes.
		for _, one := range append(values, "", a+"+query:q="+b) {
			for _, two := range append(values, "", b+"+query:q="+a, anonymous) {
				claim(join.Key(with(one, two)), "join of two "+url.QueryEscape(one)+" "+url.QueryEscape(two))
			}
		}
	})
}
