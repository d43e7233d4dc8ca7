package benchmarks_test

import (
	"context"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// A server is a redis-server of our own on loopback, without persistence.
type server struct {
	client *redis.Client // the same for everybody

	counted *redis.Client // a client of which the writes are counted
	writes  atomic.Int64
}

// startServer starts a redis-server, which ends with tb. It skips where there
// is none to start.
func startServer(tb testing.TB) *server {
	tb.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		tb.Skip("skipped: no redis-server in PATH (Debian: apt-get install redis-server)")
	}
	address := freeAddress(tb)
	_, port, err := net.SplitHostPort(address)
	require.NoError(tb, err)
	process := exec.Command(path, "--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no", "--dir", tb.TempDir())
	require.NoError(tb, process.Start())
	tb.Cleanup(func() {
		_ = process.Process.Kill()
		_ = process.Wait()
	})

	// The one setting that is not a default makes deadlines hold. It costs
	// nobody anything.
	s := &server{client: redis.NewClient(&redis.Options{Addr: address, ContextTimeoutEnabled: true})}
	dial := redis.NewDialer(&redis.Options{})
	s.counted = redis.NewClient(&redis.Options{
		Addr:                  address,
		ContextTimeoutEnabled: true,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dial(ctx, network, addr)
			return countingConn{c, &s.writes}, err
		},
	})
	tb.Cleanup(func() {
		_ = s.client.Close()
		_ = s.counted.Close()
	})
	require.Eventually(tb, func() bool { return s.client.Ping(context.Background()).Err() == nil },
		10*time.Second, 10*time.Millisecond, "redis-server does not answer on %s", address)
	return s
}

func freeAddress(tb testing.TB) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// A countingConn counts what is written at once: with one caller, a round trip.
type countingConn struct {
	net.Conn
	writes *atomic.Int64
}

func (c countingConn) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}

func (s *server) flush(tb testing.TB) {
	tb.Helper()
	require.NoError(tb, s.client.FlushAll(context.Background()).Err())
}

// commands returns how often the server has run each command, those called
// inside scripts included.
func (s *server) commands(tb testing.TB) map[string]int64 {
	tb.Helper()
	text, err := s.client.Info(context.Background(), "commandstats").Result()
	require.NoError(tb, err)
	calls := map[string]int64{}
	for line := range strings.Lines(text) {
		// cmdstat_evalsha:calls=3,usec=20,...
		name, rest, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if !ok {
			continue
		}
		number, _, _ := strings.Cut(rest, ",")
		calls[name], err = strconv.ParseInt(number, 10, 64)
		require.NoError(tb, err)
	}
	delete(calls, "info")
	return calls
}

// decisions is how many calls in c came from the client to decide something:
// scripts, and PING for that floor.
func decisions(c map[string]int64) int64 { return c["evalsha"] + c["eval"] + c["ping"] }

// usedMemory is what the server has allocated, in bytes.
func (s *server) usedMemory(tb testing.TB) int64 {
	tb.Helper()
	text, err := s.client.Info(context.Background(), "memory").Result()
	require.NoError(tb, err)
	for line := range strings.Lines(text) {
		if number, ok := strings.CutPrefix(line, "used_memory:"); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
			require.NoError(tb, err)
			return n
		}
	}
	require.Fail(tb, "INFO memory has no used_memory")
	return 0
}
