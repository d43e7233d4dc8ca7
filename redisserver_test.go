package ratelimit_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aed328ba/ratelimit"
	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// redisBinary returns the path of redis-server. Without it a test is skipped,
// but in CI it fails: there the real server is part of the proof.
func redisBinary(t testing.TB) string {
	t.Helper()
	path, err := exec.LookPath("redis-server")
	if err == nil {
		return path
	}
	const missing = "redis-server is not installed, so that this was not exercised on a real Redis (Debian: apt-get install redis-server)"
	if os.Getenv("CI") != "" {
		t.Fatal(missing)
	}
	t.Skip(missing)
	return ""
}

// A redisServer is a server of the test's own, on a free port.
type redisServer struct {
	t    testing.TB
	addr string
	args []string
	cmd  *exec.Cmd
}

// startRedis starts a server with what it is told, by default without
// persistence, and stops it with the test.
func startRedis(t testing.TB, args ...string) *redisServer {
	t.Helper()
	binary := redisBinary(t)
	port := freePort(t)
	s := &redisServer{t: t, addr: "127.0.0.1:" + port, args: append([]string{
		binary, "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
		"--dir", t.TempDir(), "--enable-debug-command", "yes",
	}, args...)}
	s.start()
	t.Cleanup(s.kill)
	return s
}

func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	if n, _ := strconv.Atoi(port); n > 55000 { // a cluster needs the port 10,000 higher too
		return freePort(t)
	}
	return port
}

func (s *redisServer) start() {
	s.t.Helper()
	s.cmd = exec.Command(s.args[0], s.args[1:]...)
	log := filepath.Join(s.t.TempDir(), "redis.log")
	out, err := os.Create(log)
	require.NoError(s.t, err)
	s.cmd.Stdout, s.cmd.Stderr = out, out
	require.NoError(s.t, s.cmd.Start())
	for range 200 {
		conn, err := net.Dial("tcp", s.addr)
		if err == nil {
			_ = conn.Close()
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	text, _ := os.ReadFile(log)
	s.t.Fatalf("redis-server did not start: %s", text)
}

// kill ends the server at once, as a crash would.
func (s *redisServer) kill() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		s.cmd = nil
	}
}

func (s *redisServer) signal(sig syscall.Signal) { _ = s.cmd.Process.Signal(sig) }

// client returns a client with the settings that the README recommends.
func (s *redisServer) client(change ...func(*redis.Options)) *redis.Client {
	o := &redis.Options{Addr: s.addr, ContextTimeoutEnabled: true}
	for _, f := range change {
		f(o)
	}
	c := redis.NewClient(o)
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// calls returns how often the server has run a command.
func calls(t testing.TB, c redis.UniversalClient, command string) int {
	t.Helper()
	stats, err := c.Info(context.Background(), "commandstats").Result()
	require.NoError(t, err)
	_, after, found := strings.Cut(stats, "cmdstat_"+command+":calls=")
	if !found {
		return 0
	}
	n, err := strconv.Atoi(after[:strings.IndexByte(after, ',')])
	require.NoError(t, err)
	return n
}

// startMini starts a miniredis, whose time is what it is told.
func startMini(t testing.TB, now time.Time) (*miniredis.Miniredis, *redis.Client) {
	t.Helper()
	m := miniredis.NewMiniRedis()
	require.NoError(t, m.Start())
	t.Cleanup(m.Close)
	m.SetTime(now)
	m.ClockTTL(true)
	c := redis.NewClient(&redis.Options{Addr: m.Addr(), ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = c.Close() })
	return m, c
}

// on runs a test on miniredis and on a real server.
func on(t *testing.T, test func(t *testing.T, c *redis.Client)) {
	t.Run("miniredis", func(t *testing.T) {
		_, c := startMini(t, time.Now())
		test(t, c)
	})
	t.Run("redis", func(t *testing.T) { test(t, startRedis(t).client()) })
}

func key(prefix string, i int) string { return fmt.Sprintf("%s%d", prefix, i) }

// redisLimiter returns a limiter that never decides without Redis, however slow
// the machine is that runs the test.
func redisLimiter(opts ...ratelimit.Option) *ratelimit.Limiter {
	strict := []ratelimit.Option{ratelimit.WithFailure(ratelimit.FailClosed), ratelimit.WithTimeout(30 * time.Second)}
	return must(ratelimit.NewLimiter(append(strict, opts...)...))
}
