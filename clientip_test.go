package ratelimit_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/aed328ba/ratelimit"
	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// ipKey returns the key of a request to an engine that prepare has set up.
func ipKey(t *testing.T, l *ratelimit.Limiter, prepare func(*gin.Engine), headers ...string) string {
	t.Helper()
	r := gin.New()
	if prepare != nil {
		prepare(r)
	}
	var key string
	r.GET("/", func(c *gin.Context) { key = l.Key(c) })
	require.Equal(t, http.StatusOK, get(r, headers...).StatusCode)
	return key
}

func byIP(t *testing.T, opts ...ratelimit.Option) (*ratelimit.Limiter, func() string) {
	t.Helper()
	logger, logged := logTo(t)
	return must(ratelimit.NewLimiter(append(opts, ratelimit.WithLimit(ratelimit.PerMinute(1)), ratelimit.WithLogger(logger))...)), logged
}

func TestOneClientHasOneKeyHoweverItsAddressIsSpelled(t *testing.T) {
	l, _ := byIP(t)
	for peer, want := range map[string]string{
		"203.0.113.7:4711":            "ip:203.0.113.7",
		"203.0.113.7":                 "ip:203.0.113.7", // without port
		"[::ffff:203.0.113.7]:4711":   "ip:203.0.113.7", // IPv4-mapped
		"[::ffff:cb00:7107]:1":        "ip:203.0.113.7",
		"[::ffff:203.0.113.8]:1":      "ip:203.0.113.8", // and not all IPv4 clients one
		"[2001:db8::1]:4711":          "ip:2001:db8::/64",
		"[2001:DB8::1]:4711":          "ip:2001:db8::/64",
		"[2001:db8:0:0::1]:4711":      "ip:2001:db8::/64",
		"2001:db8::1":                 "ip:2001:db8::/64",
		"[2001:db8::ffff:0:0:1]:4711": "ip:2001:db8::/64",
		"[2001:db8:0:1::1]:4711":      "ip:2001:db8:0:1::/64",
		"[fe80::1%eth0]:4711":         "ip:fe80::/64", // zoned
		"fe80::1%eth0":                "ip:fe80::/64",
		"[::1]:4711":                  "ip:::/64",
		"@":                           "ip:unknown",
		"":                            "ip:unknown",
		"pipe":                        "ip:unknown",
	} {
		assert.Equal(t, want, ipKey(t, l, nil, "peer: "+peer), peer)
	}
}

func TestIPv6PrefixIsConfigurable(t *testing.T) {
	for bits, want := range map[int]string{48: "ip:2001:db8:1::/48", 56: "ip:2001:db8:1:200::/56", 128: "ip:2001:db8:1:203::4/128"} {
		l, _ := byIP(t, ratelimit.WithIPv6Prefix(bits))
		assert.Equal(t, want, ipKey(t, l, nil, "peer: [2001:db8:1:203::4]:1"))
		assert.Equal(t, "ip:203.0.113.7", ipKey(t, l, nil, "peer: 203.0.113.7:1"), "IPv4 is not touched")
	}
}

func TestAUnixSocketHasAKey(t *testing.T) {
	l, _ := byIP(t)
	r := gin.New()
	var key string
	r.GET("/", func(c *gin.Context) { key = l.Key(c) })
	serve := func(headers ...string) {
		req := httptest.NewRequest(http.MethodGet, "/", nil)
		req.RemoteAddr = "@"
		for _, h := range headers {
			req.Header.Set("X-Forwarded-For", h)
		}
		req = req.WithContext(context.WithValue(req.Context(), http.LocalAddrContextKey, &net.UnixAddr{Net: "unix", Name: "/run/app.sock"}))
		r.ServeHTTP(httptest.NewRecorder(), req)
	}
	serve()
	assert.Equal(t, "ip:unix", key)
	serve("203.0.113.7")
	assert.Equal(t, "ip:unix", key, "anybody's header while Gin trusts everybody")

	l, _ = byIP(t)
	require.NoError(t, r.SetTrustedProxies(nil))
	serve("6.6.6.6, 203.0.113.7")
	assert.Equal(t, "ip:203.0.113.7", key, "Gin trusts the proxy on a unix socket: its own entry counts")
}

func TestWhileGinTrustsEveryoneNoHeaderChoosesTheKeyAndOneWarningSaysWhatToDo(t *testing.T) {
	for name, prepare := range map[string]func(*gin.Engine){
		"default":        nil,
		"by name":        func(e *gin.Engine) { _ = e.SetTrustedProxies([]string{"0.0.0.0/0", "::/0"}) },
		"in halves":      func(e *gin.Engine) { _ = e.SetTrustedProxies([]string{"0.0.0.0/1", "128.0.0.0/1"}) },
		"other headers":  func(e *gin.Engine) { e.RemoteIPHeaders = []string{"True-Client-IP"} },
		"platform, cold": func(e *gin.Engine) { e.TrustedPlatform = "X-CDN-IP" }, // a request past the CDN
	} {
		t.Run(name, func(t *testing.T) {
			l, logged := byIP(t)
			assert.Equal(t, "ip:203.0.113.7", ipKey(t, l, prepare, "peer: 203.0.113.7:1"))
			assert.Empty(t, logged(), "nothing was ignored yet")
			for range 3 {
				key := ipKey(t, l, prepare, "peer: 203.0.113.7:1", "X-Forwarded-For: 6.6.6.6", "X-Real-IP: 6.6.6.6", "True-Client-IP: 6.6.6.6", "Forwarded: for=6.6.6.6")
				assert.Equal(t, "ip:203.0.113.7", key)
			}
			assert.Equal(t, 1, strings.Count(logged(), "\n"))
			assert.Contains(t, logged(), "SetTrustedProxies")
			assert.NotContains(t, logged(), "6.6.6.6")
			assert.NotContains(t, logged(), "203.0.113.7")
		})
	}
}

func TestOnceProxiesAreTrustedTheAddressTheyReportCounts(t *testing.T) {
	trust := func(proxies ...string) func(*gin.Engine) {
		return func(e *gin.Engine) { _ = e.SetTrustedProxies(proxies) }
	}
	platform := func(e *gin.Engine) { e.TrustedPlatform = gin.PlatformCloudflare }
	const proxy, direct = "peer: 10.0.0.1:1", "peer: 203.0.113.7:1"
	for name, test := range map[string]struct {
		prepare func(*gin.Engine)
		headers []string
		want    string
	}{
		"no proxies":                      {trust(), []string{direct, "X-Forwarded-For: 6.6.6.6"}, "ip:203.0.113.7"},
		"through the proxy":               {trust("10.0.0.0/8"), []string{proxy, "X-Forwarded-For: 203.0.113.9"}, "ip:203.0.113.9"},
		"a client that lies to the proxy": {trust("10.0.0.0/8"), []string{proxy, "X-Forwarded-For: 6.6.6.6, 203.0.113.9"}, "ip:203.0.113.9"},
		"on two lines":                    {trust("10.0.0.0/8"), []string{proxy, "X-Forwarded-For: 6.6.6.6", "X-Forwarded-For: 203.0.113.9"}, "ip:203.0.113.9"},
		"two proxies":                     {trust("10.0.0.0/8"), []string{proxy, "X-Forwarded-For: 6.6.6.6, 203.0.113.9, 10.0.0.2"}, "ip:203.0.113.9"},
		"past the proxy":                  {trust("10.0.0.0/8"), []string{direct, "X-Forwarded-For: 6.6.6.6"}, "ip:203.0.113.7"},
		"the proxy itself":                {trust("10.0.0.0/8"), []string{proxy}, "ip:10.0.0.1"},
		"IPv6, odd spelling":              {trust("10.0.0.0/8"), []string{proxy, "X-Forwarded-For: 2001:DB8:0:0::9"}, "ip:2001:db8::/64"},
		"IPv4-mapped":                     {trust("10.0.0.0/8"), []string{proxy, "X-Forwarded-For: ::ffff:203.0.113.9"}, "ip:203.0.113.9"},
		"X-Real-IP of the proxy":          {trust("10.0.0.0/8"), []string{proxy, "X-Real-IP: 203.0.113.9"}, "ip:203.0.113.9"},
		// Gin cannot read these and would go on to an X-Real-IP that the
		// client wrote, and the proxy passed on.
		"with a port":                  {trust("10.0.0.0/8"), []string{proxy, "X-Forwarded-For: 203.0.113.9:5511", "X-Real-IP: 6.6.6.6"}, "ip:203.0.113.9"},
		"with a port, and a liar":      {trust("10.0.0.0/8"), []string{proxy, "X-Forwarded-For: 6.6.6.6, 203.0.113.9:5511", "X-Real-IP: 6.6.6.6"}, "ip:203.0.113.9"},
		"IPv6 with a port":             {trust("10.0.0.0/8"), []string{proxy, "X-Forwarded-For: [2001:db8::9]:5511", "X-Real-IP: 6.6.6.6"}, "ip:2001:db8::/64"},
		"garbage":                      {trust("10.0.0.0/8"), []string{proxy, "X-Forwarded-For: unknown", "X-Real-IP: 6.6.6.6"}, "ip:10.0.0.1"},
		"garbage before the proxies":   {trust("10.0.0.0/8"), []string{proxy, "X-Forwarded-For: 6.6.6.6, unknown, 10.0.0.2", "X-Real-IP: 6.6.6.6"}, "ip:10.0.0.1"},
		"a port, past the proxy":       {trust("10.0.0.0/8"), []string{direct, "X-Forwarded-For: 6.6.6.6:1", "X-Real-IP: 6.6.6.6"}, "ip:203.0.113.7"},
		"platform":                     {platform, []string{direct, "CF-Connecting-IP: 203.0.113.9", "X-Forwarded-For: 6.6.6.6"}, "ip:203.0.113.9"},
		"platform, not an address":     {platform, []string{direct, "CF-Connecting-IP: x", "X-Forwarded-For: 6.6.6.6"}, "ip:203.0.113.7"},
		"platform absent, proxy known": {func(e *gin.Engine) { platform(e); trust("10.0.0.0/8")(e) }, []string{proxy, "X-Forwarded-For: 203.0.113.9"}, "ip:203.0.113.9"},
		"the peers of tests trusted":   {trust("192.0.2.1"), []string{"peer: 192.0.2.1:1234", "X-Forwarded-For: 203.0.113.9"}, "ip:203.0.113.9"},
		"forwarding switched off":      {func(e *gin.Engine) { e.ForwardedByClientIP = false }, []string{direct, "X-Forwarded-For: 6.6.6.6"}, "ip:203.0.113.7"},
	} {
		t.Run(name, func(t *testing.T) {
			l, logged := byIP(t)
			assert.Equal(t, test.want, ipKey(t, l, test.prepare, test.headers...))
			if name != "forwarding switched off" {
				assert.Empty(t, logged())
			}
		})
	}
}

func TestALimiterMayServeEnginesOfDifferentTrust(t *testing.T) {
	l, _ := byIP(t)
	trusting, careful := gin.New(), gin.New()
	require.NoError(t, careful.SetTrustedProxies([]string{"10.0.0.1"}))
	keys := map[*gin.Engine]string{}
	for _, e := range []*gin.Engine{trusting, careful} {
		e.GET("/", func(c *gin.Context) { keys[e] = l.Key(c) })
	}
	for range 2 {
		for e, want := range map[*gin.Engine]string{trusting: "ip:10.0.0.1", careful: "ip:203.0.113.9"} {
			get(e, "peer: 10.0.0.1:1", "X-Forwarded-For: 203.0.113.9")
			assert.Equal(t, want, keys[e])
		}
	}
}

func TestAContextMadeByHandHasAKey(t *testing.T) {
	l, _ := byIP(t)
	c := &gin.Context{Request: httptest.NewRequest(http.MethodGet, "/", nil)}
	c.Request.RemoteAddr = "203.0.113.7:1"
	c.Request.Header.Set("X-Forwarded-For", "6.6.6.6")
	assert.Equal(t, "ip:203.0.113.7", l.Key(c))
}

// FuzzIPKey: whatever a client writes, it cannot choose its key, and the key
// is one that an address has.
func FuzzIPKey(f *testing.F) {
	for _, s := range []string{"203.0.113.7:1", "[2001:DB8::1]:1", "::ffff:1.2.3.4", "fe80::1%eth0", "@", "", "[::1", "1.2.3.4, 5.6.7.8", "6.6.6.6:80", "\x00", "0x7f.1"} {
		f.Add(s, s, s)
	}
	logger, _ := logTo(&testing.T{})
	l := must(ratelimit.NewLimiter(ratelimit.WithLimit(ratelimit.PerMinute(1)), ratelimit.WithLogger(logger)))
	var key string
	handler := func(c *gin.Context) { key = l.Key(c) }
	open, closed := gin.New(), gin.New()
	_ = closed.SetTrustedProxies([]string{"10.0.0.1"})
	open.GET("/", handler)
	closed.GET("/", handler)
	ask := func(e *gin.Engine, peer, forwarded, realIP string) string {
		req := httptest.NewRequest(http.MethodGet, "/", nil)
		req.RemoteAddr = peer
		req.Header["X-Forwarded-For"] = []string{forwarded}
		req.Header["X-Real-Ip"] = []string{realIP}
		e.ServeHTTP(httptest.NewRecorder(), req)
		return key
	}
	f.Fuzz(func(t *testing.T, peer, forwarded, realIP string) {
		for _, e := range []*gin.Engine{open, closed} {
			if got := ask(e, "203.0.113.7:1", forwarded, realIP); got != "ip:203.0.113.7" {
				t.Fatalf("a client chose the key %q", got)
			}
		}
		// What the proxy adds decides, whatever stood before.
		if got := ask(closed, "10.0.0.1:1", forwarded+", 203.0.113.9", realIP); got != "ip:203.0.113.9" {
			t.Fatalf("behind the proxy a client chose the key %q", got)
		}
		got := strings.TrimPrefix(ask(open, peer, forwarded, realIP), "ip:")
		if _, err := netip.ParseAddr(got); err != nil && got != "unknown" {
			if _, err := netip.ParsePrefix(got); err != nil {
				t.Fatalf("peer %q has the key %q", peer, got)
			}
		}
	})
}
