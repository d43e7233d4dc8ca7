package ratelimit_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aed328ba/ratelimit"
	"github.com/aed328ba/ratelimit/ratelimittest"
	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A victim is a real server on loopback, and what became of it.
type victim struct {
	t     *testing.T
	addr  string
	ran   atomic.Int64 // requests that reached the application
	lost  atomic.Int64 // of status 404
	fault atomic.Int64 // of status 500 and above
	close func()       // ends the server before the test does, and waits for the last request
}

// attack serves a Gin engine over TCP until the test ends, and fails it if a
// request panicked or was answered with 5xx. The routes are /login and
// /users/:id.
func attack(t *testing.T, prepare func(*gin.Engine), use ...gin.HandlerFunc) *victim {
	t.Helper()
	srv := &victim{t: t}
	r := gin.New()
	if prepare != nil {
		prepare(r)
	}
	r.Use(func(c *gin.Context) {
		c.Next()
		switch status := c.Writer.Status(); {
		case status >= 500:
			srv.fault.Add(1)
		case status == http.StatusNotFound:
			srv.lost.Add(1)
		}
	})
	r.Use(use...)
	handler := func(c *gin.Context) { srv.ran.Add(1) }
	r.Any("/login", handler)
	r.GET("/users/:id", handler)

	var mu sync.Mutex
	var logged bytes.Buffer
	s := httptest.NewUnstartedServer(r)
	s.Config.MaxHeaderBytes = 4 << 20
	s.Config.ErrorLog = log.New(writerFunc(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return logged.Write(p)
	}), "", 0)
	s.Start()
	t.Cleanup(func() {
		s.Close()
		mu.Lock()
		defer mu.Unlock()
		assert.NotContains(t, logged.String(), "panic")
		assert.Zero(t, srv.fault.Load(), "answers of 5xx")
	})
	srv.addr, srv.close = s.Listener.Addr().String(), s.Close
	return srv
}

// raw sends text as it is and returns the status of the answer.
func (srv *victim) raw(text string) int {
	srv.t.Helper()
	conn, err := net.Dial("tcp", srv.addr)
	require.NoError(srv.t, err)
	defer func() { _ = conn.Close() }()
	// Where the server refuses a request it has not read to its end, writing
	// fails and the answer may be lost.
	_, _ = io.WriteString(conn, text)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// login requests GET /login with lines of headers.
func (srv *victim) login(headers ...string) int {
	srv.t.Helper()
	return srv.raw("GET /login HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n" + strings.Join(append(headers, "\r\n"), "\r\n"))
}

// forgedHeaders are those in which a proxy may say who the client is.
var forgedHeaders = []string{
	"X-Forwarded-For", "x-forwarded-for", "X-FORWARDED-FOR", "X-Forwarded-for ", "X_Forwarded_For", "X-Real-IP", "X-Real-Ip",
	"Forwarded", "True-Client-IP", "CF-Connecting-IP", "Fly-Client-IP", "Fastly-Client-IP", "X-Client-IP",
	"X-Cluster-Client-IP", "X-Appengine-Remote-Addr", "X-Original-Forwarded-For", "Client-IP", "Via", "X-Remote-Addr", "Remote-Addr",
}

// forgedAddresses are what a client may write there.
var forgedAddresses = []string{
	"6.6.6.6", "6.6.6.7", "6.6.6.6, 6.6.6.7", "6.6.6.6,127.0.0.1", "6.6.6.6, 10.0.0.1", "6.6.6.6:80", "6.6.6.6:80, 10.0.0.1:80", "127.0.0.1", "127.0.0.2", "127.1", "2130706433",
	"0x7f.1", "::ffff:6.6.6.6", "::ffff:606:606", "[::ffff:6.6.6.6]:80", "2001:DB8::1", "2001:db8:0:0::1", "[2001:db8::2]", "[2001:db8::3]:80", "fe80::1%eth0", "::1", "[::1",
	"for=6.6.6.6", `for="[2001:db8::1]:80";proto=http`, "unknown", "_hidden", "localhost", "<nil>", "", " ", ",", ",,,", ", 6.6.6.6", "6.6.6.6,", "6.6.6.6\t", "6.6.6.6 6.6.6.7",
	"06.6.6.6", "6.6.6", "6.6.6.256", "\u0666.\u0666.6.6", "6.6.6.6\u200b", `"6.6.6.6"`, "6.6.6.6;x", "*", "%00", strings.Repeat("6.6.6.6, ", 2000) + "6.6.6.8",
}

func TestNoForwardingHeaderGivesAClientAnotherBudget(t *testing.T) {
	const limit = 3
	trust := func(proxies ...string) func(*gin.Engine) {
		return func(r *gin.Engine) { _ = r.SetTrustedProxies(proxies) }
	}
	for name, test := range map[string]struct {
		prepare func(*gin.Engine)
		// What the proxy adds to the client's own X-Forwarded-For.
		added string
	}{
		"Gin as it comes":          {nil, ""},
		"no proxy":                 {trust(), ""},
		"another proxy":            {trust("10.0.0.0/8"), ""},
		"forwarding switched off":  {func(r *gin.Engine) { r.ForwardedByClientIP = false }, ""},
		"behind a proxy":           {trust("127.0.0.1"), "203.0.113.9"},
		"behind one with a port":   {trust("127.0.0.1"), "203.0.113.9:4711"},
		"behind one that maps":     {trust("127.0.0.1"), "::ffff:203.0.113.9"},
		"behind two proxies":       {trust("127.0.0.1", "10.0.0.0/8"), "203.0.113.9, 10.0.0.3"},
		"behind a proxy on a line": {trust("127.0.0.1"), "\n203.0.113.9"},
	} {
		t.Run(name, func(t *testing.T) {
			logger, _ := logTo(t)
			srv := attack(t, test.prepare, ratelimit.New(ratelimit.WithLimit(ratelimit.PerHour(limit)), ratelimit.WithLogger(logger)))
			forge := func(lines ...string) {
				switch line, onItsOwn := strings.CutPrefix(test.added, "\n"); {
				case test.added == "":
				case onItsOwn || len(lines) == 0 || !strings.EqualFold(strings.SplitN(lines[len(lines)-1], ":", 2)[0], "X-Forwarded-For"):
					lines = append(lines, "X-Forwarded-For: "+line)
				default:
					lines[len(lines)-1] += ", " + test.added
				}
				assert.Contains(t, []int{200, 400, 429}, srv.login(lines...), lines)
			}
			forge()
			for i, header := range forgedHeaders {
				for j, address := range forgedAddresses {
					if (i+j)%thinned == 0 {
						forge(header + ": " + address)
					}
				}
			}
			forge("X-Real-IP: 6.6.6.6", "X-Forwarded-For: 6.6.6.7", "X-Forwarded-For: unknown")
			forge("X-Forwarded-For: 6.6.6.7", "X-Forwarded-For: 6.6.6.8:1")
			assert.EqualValues(t, limit, srv.ran.Load())
		})
	}
}

func TestEveryHeaderValueUpToAMegabyteIsOneBudgetAndNoneIsKept(t *testing.T) {
	store := ratelimit.NewMemoryStore()
	srv := attack(t, nil, ratelimit.New(ratelimit.WithStore(store), ratelimit.WithLimit(ratelimit.PerHour(1)), ratelimit.WithKeyFunc(ratelimit.KeyByHeader("X-API-Key"))))
	before := heapInUse()
	var keys []string
	for _, size := range []int{1, 2, 100, 109, 110, 111, 127, 128, 129, 8 << 10, 64 << 10, 1 << 20} {
		common := strings.Repeat("k", size-1)
		keys = append(keys, common+"a", common+"b")
		if size > 1 { // as long, and another at the front
			keys = append(keys, "a"+common, common+"{")
		}
	}
	for _, key := range keys {
		assert.Equal(t, 200, srv.login("X-API-Key: "+key), "%d bytes", len(key))
	}
	for _, key := range keys {
		assert.Equal(t, 429, srv.login("X-API-Key: "+key), "%d bytes", len(key))
	}
	assert.Equal(t, len(keys), store.Len())
	srv.close() // who has an answer may still have a request in the server
	assert.Less(t, heapInUse()-before, int64(1<<20), "what is left of four megabytes of keys")
	runtime.KeepAlive(store)
}

func heapInUse() int64 {
	runtime.GC()
	runtime.GC() // and what was pooled
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestAMillionKeysFitIntoABoundedTableAndFreeNobody(t *testing.T) {
	million := 1_000_000
	if raceEnabled || testing.Short() {
		million = 100_000
	}
	const maxKeys = 10_000
	before := heapInUse()
	store := ratelimit.NewMemoryStore(ratelimit.WithMaxKeys(maxKeys))
	l := must(ratelimit.NewLimiter(ratelimit.WithStore(store), ratelimit.WithLimit(ratelimit.PerHour(5)), ratelimit.WithKeyFunc(ratelimit.KeyByHeader("X-API-Key"))))
	srv := attack(t, nil, l.Middleware())
	for range 5 {
		require.Equal(t, 200, srv.login("X-API-Key: attacker"))
	}
	var wg sync.WaitGroup
	var most atomic.Int64
	for g := range 4 {
		wg.Go(func() {
			for i := range million / 4 {
				_, _ = l.Allow(context.Background(), "header:X-Api-Key="+strconv.Itoa(g)+"-"+strconv.Itoa(i))
				if held := int64(store.Len()); held > most.Load() {
					most.Store(held)
				}
			}
		})
	}
	wg.Wait()
	assert.LessOrEqual(t, most.Load(), int64(maxKeys))
	assert.Less(t, heapInUse()-before, int64(maxKeys*500))
	assert.Equal(t, 429, srv.login("X-API-Key: attacker"), "a flood of keys frees nobody")
	assert.Equal(t, 200, srv.login("X-API-Key: newcomer"), "nor locks anybody out")
	runtime.KeepAlive(store)
}

func TestNoDelimiterInAKeyReachesAnotherBudget(t *testing.T) {
	// Each pair is another client, however the parts would be written together.
	parts := []string{
		"a", "b", "A", "a:b", ":", "a+b", "+", "%2B", "%", "a=b", "=", "a b", "a,b", "a/b", "{a}", "{", "}", "}{", "{}", "{a}b", "a{b}", "*", "?", "[a]", `\`, `"`, "'",
		"a|b", "a;b", "join:a", "header:X-Api-Key=a", "query:q=a", "ip:127.0.0.1", "anonymous:127.0.0.1", "hash:0", "key:a", "a+query:q=b", "b+query:q=a", "a%2Bquery:q=b", "\u00e9", "e\u0301",
	}
	t.Run("memory", func(t *testing.T) {
		store := ratelimit.NewMemoryStore()
		pairs := noPairSharesABudget(t, parts, store)
		assert.Equal(t, pairs, store.Len())
	})
	t.Run("redis", func(t *testing.T) {
		client := startRedis(t).client()
		pairs := noPairSharesABudget(t, parts, ratelimit.NewRedisStore(client))
		assert.EqualValues(t, pairs, client.DBSize(context.Background()).Val())
	})
}

// noPairSharesABudget asks for each pair of parts twice, of which one request
// is admitted. It returns how many pairs there were.
func noPairSharesABudget(t *testing.T, parts []string, store ratelimit.Store) int {
	srv := attack(t, nil, ratelimit.New(ratelimit.WithStore(store), ratelimit.WithTimeout(time.Minute), ratelimit.WithLimit(ratelimit.PerHour(1)),
		ratelimit.WithKeyFunc(ratelimit.JoinKeys(ratelimit.KeyByHeader("X-API-Key"), ratelimit.KeyByQuery("q")))))
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1}}
	defer client.CloseIdleConnections()
	pairs := 0
	for round, want := range []int{200, 429} {
		pairs = 0
		for i, a := range parts {
			for j, b := range parts {
				if (i+j)%thinned != 0 && !strings.Contains(a+b, "query") {
					continue
				}
				pairs++
				req := must(http.NewRequest(http.MethodGet, "http://"+srv.addr+"/login", nil))
				req.Header.Set("X-API-Key", a)
				q := req.URL.Query()
				q.Set("q", b)
				req.URL.RawQuery = q.Encode()
				resp := must(client.Do(req))
				_ = resp.Body.Close()
				require.Equal(t, want, resp.StatusCode, "round %d: %q and %q", round, a, b)
			}
		}
	}
	return pairs
}

func TestNoSpellingOfAPathIsAnotherBudget(t *testing.T) {
	paths := []string{
		"/login", "//login", "///login", "/./login", "/../login", "/x/../login", "/login/", "/login//", "/login/.", "/%6cogin", "/%6Cogin", "/%2Flogin", "/login%2F", "/%2e/login",
		"/LOGIN", "/Login", "/login?a=1", "/login?", "/login#x", "/login;a=1", "/login%00", "/login%20", "/login%0a", "/login\t", "/log\u0131n", "/l\u00f6gin", "/login%C2%AD", `\login`, `/\login`,
		"http://example.com/login", "http://other.example/login", "HTTP://EXAMPLE.COM//login", "*", "/", "", "/users/1", "/users/2", "/users/%31", "/users//1", "/users/1/", "/users/1%2F2", "/users/..%2f1",
	}
	methods := []string{"GET", "POST", "PUT", "HEAD", "OPTIONS", "PROPFIND", "get", "INVENTED"}
	const limit = 2
	for name, prepare := range map[string]func(*gin.Engine){
		"as Gin comes":  nil,
		"by raw path":   func(r *gin.Engine) { r.UseRawPath, r.UnescapePathValues = true, false },
		"fixed paths":   func(r *gin.Engine) { r.RedirectFixedPath, r.RemoveExtraSlash = true, true },
		"no redirects":  func(r *gin.Engine) { r.RedirectTrailingSlash = false },
		"method checks": func(r *gin.Engine) { r.HandleMethodNotAllowed = true },
	} {
		t.Run(name, func(t *testing.T) {
			byRoute := attack(t, prepare, ratelimit.New(ratelimit.WithLimit(ratelimit.PerHour(limit)), ratelimit.WithKeyFunc(ratelimit.JoinKeys(ratelimit.KeyByIP(), ratelimit.KeyByRoute()))))
			byIP := attack(t, prepare, ratelimit.New(ratelimit.WithLimit(ratelimit.PerHour(limit))))
			for i, method := range methods {
				for j, path := range paths {
					if path != "/login" && (i+j)%thinned != 0 {
						continue
					}
					for _, srv := range []*victim{byIP, byRoute} {
						status := srv.raw(method + " " + path + " HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n")
						assert.Less(t, status, 500)
					}
				}
			}
			assert.LessOrEqual(t, byIP.ran.Load()+byIP.lost.Load(), int64(limit), "by IP, whatever the path")
			// Gin knows any method at /login and GET at /users/:id; what matches no route is one more.
			assert.LessOrEqual(t, byRoute.lost.Load(), int64(limit))
			assert.LessOrEqual(t, byRoute.ran.Load(), int64(limit*(5+1)), "GET, POST, PUT, HEAD, OPTIONS and users")
			assert.GreaterOrEqual(t, byRoute.ran.Load(), int64(limit*2), "the routes were found at all")
		})
	}
}

func TestEveryByteInAHeaderIsRefusedOrCountedAsItIs(t *testing.T) {
	logger, logged := logTo(t)
	srv := attack(t, nil, ratelimit.New(ratelimit.WithLimit(ratelimit.PerHour(1)), ratelimit.WithLogger(logger), ratelimit.WithKeyFunc(ratelimit.KeyByHeader("X-API-Key"))))
	accepted := 0
	values := []string{"\u202ekey", "k\u200bey", "\xc3\x28", "\xf0\x9f\x92\xa9", "\xed\xa0\x80", "k\u0000", "k\r\nX-API-Key: other", "k\r\n\r\nGET /login HTTP/1.1"}
	for b := range 256 {
		values = append(values, "k"+string([]byte{byte(b)})+"y")
	}
	for _, value := range values {
		first, second := srv.login("X-API-Key: "+value), srv.login("X-API-Key: "+value)
		switch first {
		case 200:
			accepted++
			assert.Equal(t, 429, second, "%q", value)
		default:
			assert.Contains(t, []int{400, 429}, first, "%q", value)
			assert.Equal(t, first, second, "%q", value)
		}
	}
	assert.Greater(t, accepted, 200)
	assert.EqualValues(t, accepted, srv.ran.Load())
	assert.Empty(t, logged())
}

func TestAFloodOfHeadersIsOneRequestOfOneClient(t *testing.T) {
	logger, _ := logTo(t)
	flood := func(line string) []string {
		lines := make([]string, 20_000/thinned)
		for i := range lines {
			lines[i] = fmt.Sprintf(line, i)
		}
		return lines
	}
	for name, test := range map[string]struct {
		key   ratelimit.KeyFunc
		first string
		lines []string
	}{
		"other headers":   {ratelimit.KeyByHeader("X-API-Key"), "X-API-Key: mine", flood("X-Flood-%d: x")},
		"one header":      {ratelimit.KeyByHeader("X-API-Key"), "X-API-Key: mine", flood("X-API-Key: %d")},
		"cookie lines":    {ratelimit.KeyByCookie("sid"), "Cookie: sid=mine", flood("Cookie: sid=%d")},
		"cookies":         {ratelimit.KeyByCookie("sid"), "Cookie: sid=mine", []string{"Cookie: " + strings.Join(flood("sid=%d"), "; ")}},
		"forwarded lines": {ratelimit.KeyByIP(), "X-Forwarded-For: 6.6.6.6", flood("X-Forwarded-For: 6.6.6.%d")},
		"forwarded for":   {ratelimit.KeyByIP(), "X-Real-IP: 6.6.6.6", []string{"X-Forwarded-For: " + strings.Join(flood("10.6.6.6"), ", ")}},
	} {
		for trust, prepare := range map[string]func(*gin.Engine){
			"":                   nil,
			", the peer trusted": func(r *gin.Engine) { _ = r.SetTrustedProxies([]string{"127.0.0.1", "10.0.0.0/8"}) },
		} {
			t.Run(name+trust, func(t *testing.T) {
				store := ratelimit.NewMemoryStore()
				srv := attack(t, prepare, ratelimit.New(ratelimit.WithStore(store), ratelimit.WithLimit(ratelimit.PerHour(2)), ratelimit.WithLogger(logger), ratelimit.WithKeyFunc(test.key)))
				start := time.Now()
				for range 4 {
					assert.Contains(t, []int{200, 429, 431}, srv.login(append([]string{test.first}, test.lines...)...))
				}
				assert.EqualValues(t, 2, srv.ran.Load())
				assert.Equal(t, 1, store.Len())
				assert.Less(t, time.Since(start), 10*time.Second, "work that grows with the square of a flood")
			})
		}
	}
}

func TestClientsThatHangUpMidRequestLeaveNothingBehind(t *testing.T) {
	const limit = 5
	thousand := 3000
	if raceEnabled {
		thousand = 1000
	}
	memory := ratelimit.NewMemoryStore()
	store := ratelimittest.NewFaultyStore(memory)
	store.Delay(20 * time.Millisecond) // in which many leave
	var refunds atomic.Int64
	srv := attack(t, nil, ratelimit.New(ratelimit.WithStore(store), ratelimit.WithTimeout(time.Minute), ratelimit.WithLimit(ratelimit.PerHour(limit)), ratelimit.WithRefund(func(*gin.Context) bool {
		refunds.Add(1)
		return false
	})))
	goroutines, heap := runtime.NumGoroutine(), heapInUse()
	const (
		whole   = "GET /login HTTP/1.1\r\nHost: example.com\r\n\r\n"
		request = "POST /login HTTP/1.1\r\nHost: example.com\r\nContent-Length: 100\r\n\r\nbody"
	)
	var wg sync.WaitGroup
	var next atomic.Int64
	for range 16 {
		wg.Go(func() {
			for {
				i := int(next.Add(1))
				if i > thousand {
					return
				}
				conn, err := net.Dial("tcp", srv.addr)
				if !assert.NoError(t, err) {
					return
				}
				// Some in the middle of the headers, some in the body, half of them while they are decided.
				text := request[:i%(len(request)+1)]
				if i%2 == 0 {
					text = whole
				}
				_, _ = io.WriteString(conn, text)
				if i%4 < 2 {
					_ = conn.(*net.TCPConn).SetLinger(0) // a reset, not an orderly end
				}
				_ = conn.Close()
			}
		})
	}
	wg.Wait()
	assert.Eventually(t, func() bool { return runtime.NumGoroutine() <= goroutines+1 }, 30*time.Second, 10*time.Millisecond, "goroutines are left")
	assert.Less(t, heapInUse()-heap, int64(1<<20), "memory is left")
	assert.Greater(t, store.Calls(), thousand/5, "so many were being decided")
	store.Heal()
	for range 2 * limit {
		srv.login()
	}
	assert.EqualValues(t, limit, srv.ran.Load(), "who hung up was counted or did not run")
	assert.Equal(t, srv.ran.Load(), refunds.Load())
	assert.Equal(t, 1, memory.Len())
}
