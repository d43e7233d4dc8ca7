// Package examples_test runs the example programs as a user would, and talks
// to them over HTTP.
package examples_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// start builds an example, starts it on a free port and returns its address.
func start(t *testing.T, name string, args ...string) string {
	t.Helper()
	return startAll(t, name, 1, args...)[0]
}

// startAll is start for a program that listens at several addresses.
func startAll(t *testing.T, name string, want int, args ...string) (addresses []string) {
	t.Helper()
	binary := filepath.Join(t.TempDir(), name)
	build := exec.Command("go", "build", "-o", binary, "./"+name)
	build.Stderr = os.Stderr
	require.NoError(t, build.Run())

	server := exec.Command(binary, append([]string{"-addr", "localhost:0"}, args...)...)
	out, err := server.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, server.Start())
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	address := regexp.MustCompile(`http://[^/ ]+`)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if found := address.FindString(lines.Text()); found != "" {
			if addresses = append(addresses, found); len(addresses) == want {
				go func() { _, _ = io.Copy(io.Discard, out) }()
				return addresses
			}
		}
	}
	t.Fatalf("%s ended without saying where it listens", name)
	return nil
}

func do(t *testing.T, method, target string, header map[string]string, form url.Values) *http.Response {
	t.Helper()
	req, err := http.NewRequest(method, target, strings.NewReader(form.Encode()))
	require.NoError(t, err)
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for name, value := range header {
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	_, _ = io.Copy(io.Discard, resp.Body)
	require.NoError(t, resp.Body.Close())
	return resp
}

func TestBasic(t *testing.T) {
	base := start(t, "basic")
	for _, remaining := range []string{"2", "1", "0"} {
		resp := do(t, "GET", base, nil, nil)
		assert.Equal(t, 200, resp.StatusCode)
		assert.Equal(t, "3", resp.Header.Get("X-RateLimit-Limit"))
		assert.Equal(t, remaining, resp.Header.Get("X-RateLimit-Remaining"))
		assert.Regexp(t, `^\d{10}$`, resp.Header.Get("X-RateLimit-Reset"))
	}
	resp := do(t, "GET", base, map[string]string{"X-Forwarded-For": "6.6.6.6"}, nil)
	assert.Equal(t, 429, resp.StatusCode)
	assert.Regexp(t, `^(60|5\d)$`, resp.Header.Get("Retry-After"))
	assert.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"))
}

func TestGroups(t *testing.T) {
	base := start(t, "groups")

	resp := do(t, "GET", base+"/pages/a", nil, nil)
	assert.Equal(t, "29", resp.Header.Get("X-RateLimit-Remaining"))

	denied := 0
	for range 8 {
		resp = do(t, "GET", base+"/api/items", map[string]string{"X-API-Key": "mine"}, nil)
		assert.Equal(t, `"api-second";q=5, "api-hour";q=1000;w=3600`, resp.Header.Get("RateLimit-Policy"))
		if resp.StatusCode == 429 {
			denied++
		}
	}
	assert.Positive(t, denied)
	resp = do(t, "GET", base+"/api/items", map[string]string{"X-API-Key": "another"}, nil)
	assert.Equal(t, 200, resp.StatusCode)

	login := func(name, password string) int {
		return do(t, "POST", base+"/login", nil, url.Values{"name": {name}, "password": {password}}).StatusCode
	}
	for range 5 {
		assert.Equal(t, 200, login("ann", "secret"), "successes do not count")
	}
	for range 3 {
		assert.Equal(t, 401, login("ann", "guess"))
	}
	assert.Equal(t, 429, login("ann", "secret"))
	assert.Equal(t, 200, login("bob", "secret"))
}

func TestAnnotations(t *testing.T) {
	for _, table := range []string{"routes.json", "routes.yaml"} {
		base := start(t, "annotations", "-routes", table)
		limit := func(method, path string) string {
			return do(t, method, base+path, nil, nil).Header.Get("X-RateLimit-Limit")
		}
		assert.Equal(t, "100", limit("GET", "/"))
		assert.Equal(t, "40", limit("GET", "/search"))
		assert.Equal(t, "10", limit("GET", "/admin/users"))
		assert.Equal(t, "", limit("GET", "/healthz"))
		assert.Equal(t, "30", limit("GET", "/orders"))
		assert.Equal(t, "4", limit("POST", "/orders"))
		assert.Equal(t, "", limit("GET", "/orders/rates"))
		for range 3 {
			assert.Equal(t, 200, do(t, "POST", base+"/login", nil, nil).StatusCode)
		}
		assert.Equal(t, 429, do(t, "POST", base+"/reset", nil, nil).StatusCode, "they share a budget")
	}
}

// redisAddr starts a Redis, or miniredis where none is installed.
func redisAddr(t *testing.T) (addr string, stop func()) {
	t.Helper()
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		m := miniredis.RunT(t)
		return m.Addr(), m.Close
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr = listener.Addr().String()
	require.NoError(t, listener.Close())
	_, port, _ := net.SplitHostPort(addr)
	server := exec.Command(binary, "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", t.TempDir())
	require.NoError(t, server.Start())
	stop = sync.OnceFunc(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	t.Cleanup(stop)
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}, 5*time.Second, 10*time.Millisecond)
	return addr, stop
}

func TestRedis(t *testing.T) {
	redis, stop := redisAddr(t)
	instances := startAll(t, "redis", 2, "-redis", redis)
	for i := range 4 {
		resp := do(t, "GET", instances[i%2], nil, nil)
		assert.Equal(t, 200, resp.StatusCode)
		assert.Equal(t, strconv.Itoa(4-i), resp.Header.Get("X-RateLimit-Remaining"), "one budget")
	}
	stop()
	for _, instance := range instances {
		for range 5 {
			resp := do(t, "GET", instance, nil, nil)
			assert.Equal(t, 200, resp.StatusCode, "each by itself")
			assert.Empty(t, resp.Header.Get("X-RateLimit-Remaining"), "no number that would have to be made up")
		}
		assert.Equal(t, 429, do(t, "GET", instance, nil, nil).StatusCode)
	}
}
