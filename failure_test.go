package ratelimit_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aed328ba/ratelimit"
	"github.com/aed328ba/ratelimit/ratelimittest"
	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A faultyStore fails, hangs or works, as it is told.
type faultyStore struct {
	*ratelimit.MemoryStore
	mode  atomic.Int32 // works, fails, hangs
	calls atomic.Int32
}

const (
	works = iota
	fails
	hangs
)

func newFaulty() *faultyStore { return &faultyStore{MemoryStore: ratelimit.NewMemoryStore()} }

func (s *faultyStore) Take(ctx context.Context, p *ratelimit.Policy, key string, cost int, results []ratelimit.Result) error {
	s.calls.Add(1)
	switch s.mode.Load() {
	case fails:
		return errors.New("store down")
	case hangs:
		<-ctx.Done()
		return ctx.Err()
	}
	return s.MemoryStore.Take(ctx, p, key, cost, results)
}

func TestEachFailurePolicyHoldsOverHTTP(t *testing.T) {
	for policy, want := range map[ratelimit.FailurePolicy][]int{
		ratelimit.FailLocal: {200, 200, 429, 429}, ratelimit.FailOpen: {200, 200, 200, 200}, ratelimit.FailClosed: {503, 503, 503, 503},
	} {
		t.Run(policy.String(), func(t *testing.T) {
			var seen recorder
			logger, _ := logTo(t)
			store := newFaulty()
			store.mode.Store(fails)
			l, _ := limited(t, ratelimit.WithStore(store), ratelimit.WithFailure(policy), ratelimit.WithLimit(ratelimit.PerMinute(2)), ratelimit.WithObserver(seen.observe), ratelimit.WithLogger(logger))
			var told bool
			r := engine(l.Middleware(), func(c *gin.Context) { _, told = ratelimit.FromContext(c) })
			for i, status := range want {
				resp := get(r)
				assert.Equal(t, status, resp.StatusCode)
				assert.NotContains(t, resp.Header, "X-Ratelimit-Limit", "no invented header")
				assert.False(t, told)
				switch status {
				case 429:
					assert.Equal(t, "60", resp.Header.Get("Retry-After"))
				case 503:
					assert.Equal(t, "1", resp.Header.Get("Retry-After"))
					assert.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
					body, _ := io.ReadAll(resp.Body)
					assert.JSONEq(t, `{"type":"about:blank","title":"Service Unavailable","status":503,"detail":"The service cannot check its rate limits at the moment. Try again soon."}`, string(body))
				}
				assert.ErrorIs(t, seen.events[i].Err, ratelimit.ErrStoreUnavailable, "the observer sees each degraded decision")
				assert.Equal(t, status == 200, seen.events[i].Result.Allowed)
			}
			res, err := l.Allow(context.Background(), "other")
			assert.Equal(t, policy == ratelimit.FailClosed, err != nil)
			assert.Equal(t, policy != ratelimit.FailClosed, res.Allowed)
		})
	}
}

func TestLimitersOfOneNameShareTheirBudgetAlsoWhileTheStoreFails(t *testing.T) {
	faulty := newFaulty()
	faulty.mode.Store(fails)
	nowhere := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1})
	defer nowhere.Close()
	for name, store := range map[string]ratelimit.Store{
		"faulty": faulty,
		"redis":  ratelimit.NewRedisStore(nowhere),
	} {
		t.Run(name, func(t *testing.T) {
			logger, _ := logTo(t)
			allowed := func(name string) (n int) {
				l := must(ratelimit.NewLimiter(ratelimit.WithName(name), ratelimit.WithStore(store), ratelimit.WithLimit(ratelimit.PerHour(5)), ratelimit.WithLogger(logger)))
				for range 10 {
					if must(l.Allow(context.Background(), "k")).Allowed {
						n++
					}
				}
				return n
			}
			assert.Equal(t, 5, allowed("api"))
			assert.Equal(t, 0, allowed("api"), "used up by the other")
			assert.Equal(t, 5, allowed("other"))
		})
	}
}

func TestTheBreakerStopsAskingProbesInTheBackgroundAndLogsEachChangeOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger, logged := logTo(t)
		store := newFaulty()
		l := must(ratelimit.NewLimiter(ratelimit.WithStore(store), ratelimit.WithLimit(ratelimit.PerHour(1000)), ratelimit.WithLogger(logger), ratelimit.WithName("api")))
		ctx := context.Background()
		allow := func() time.Duration {
			start := time.Now()
			_, err := l.Allow(ctx, "secret")
			require.NoError(t, err)
			return time.Since(start)
		}
		allow()
		store.mode.Store(hangs)
		store.calls.Store(0)
		for range 5 {
			assert.Equal(t, 100*time.Millisecond, allow(), "bounded by the timeout")
		}
		assert.Equal(t, 1, strings.Count(logged(), "\n"))
		assert.Contains(t, logged(), "the store does not answer; until it does, limits are enforced in this process alone")
		assert.Contains(t, logged(), "limiter=api")
		assert.NotContains(t, logged(), "secret")

		for range 1000 {
			assert.Zero(t, allow(), "then by nothing: the store is not asked")
		}
		assert.EqualValues(t, 5, store.calls.Load())
		for range 10 {
			time.Sleep(time.Second)
			for range 3 {
				assert.Zero(t, allow(), "no request waits for a probe")
			}
		}
		time.Sleep(time.Second)
		assert.EqualValues(t, 15, store.calls.Load(), "one probe at a time")
		assert.Equal(t, 1, strings.Count(logged(), "\n"))

		store.mode.Store(works)
		allow()
		synctest.Wait()
		before := store.calls.Load()
		allow()
		assert.Equal(t, before+1, store.calls.Load(), "asked again as soon as a probe succeeded")
		assert.Equal(t, 2, strings.Count(logged(), "\n"))
		assert.Contains(t, logged(), "the store answers again")
	})
}

func TestFailuresWithSuccessesBetweenThemDoNotOpenTheBreaker(t *testing.T) {
	logger, logged := logTo(t)
	store := newFaulty()
	l, _ := limited(t, ratelimit.WithStore(store), ratelimit.WithLimit(ratelimit.PerMinute(1000)), ratelimit.WithLogger(logger))
	for range 20 {
		store.mode.Store(fails)
		for range 4 {
			_ = must(l.Allow(context.Background(), "k"))
		}
		store.mode.Store(works)
		_ = must(l.Allow(context.Background(), "k"))
	}
	assert.EqualValues(t, 100, store.calls.Load())
	assert.Empty(t, logged())
}

func TestAClientThatHangsUpIsNoFailureOfTheStoreAndItsRequestDoesNotRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger, logged := logTo(t)
		store := newFaulty()
		store.mode.Store(hangs)
		ran := false
		r := gin.New()
		r.Use(ratelimit.New(ratelimit.WithStore(store), ratelimit.WithLimit(ratelimit.PerMinute(1)), ratelimit.WithLogger(logger)))
		r.GET("/", func(*gin.Context) { ran = true })
		for range 20 {
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(10*time.Millisecond, cancel)
			w := httptest.NewRecorder()
			r.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx))
			cancel()
			assert.Equal(t, 499, w.Code, "what access logs call it: not a failure of the server's")
		}
		assert.False(t, ran)
		assert.EqualValues(t, 20, store.calls.Load(), "the breaker did not open")
		assert.Empty(t, logged())
	})
}

func TestADeadlineOfTheRequestIsNoHangUp(t *testing.T) {
	for timeout, asked := range map[time.Duration]int32{
		80 * time.Millisecond: 5,  // the breaker opens
		20 * time.Millisecond: 21, // says nothing of the store: a client may have asked for it
		0:                     21,
	} {
		for policy, want := range map[ratelimit.FailurePolicy]int{ratelimit.FailLocal: 200, ratelimit.FailOpen: 200, ratelimit.FailClosed: 503} {
			synctest.Test(t, func(t *testing.T) {
				logger, _ := logTo(t)
				store := newFaulty()
				store.mode.Store(hangs)
				deadline := func(c *gin.Context) {
					ctx, cancel := context.WithTimeout(c.Request.Context(), timeout)
					defer cancel()
					c.Request = c.Request.WithContext(ctx)
					c.Next()
				}
				r := engine(deadline, ratelimit.New(ratelimit.WithStore(store), ratelimit.WithLimit(ratelimit.PerMinute(20)), ratelimit.WithFailure(policy), ratelimit.WithLogger(logger)))
				for range 20 {
					assert.Equal(t, want, get(r).StatusCode, "%v, %v", timeout, policy)
				}
				if policy == ratelimit.FailLocal {
					assert.Equal(t, 429, get(r).StatusCode, "the limit holds")
					assert.Equal(t, asked, store.calls.Load(), "%v", timeout)
				}
			})
		}
	}
}

func TestAClockSetBackDoesNotKeepABrokenStoreFromBeingTried(t *testing.T) {
	store := newFaulty()
	logger, logged := logTo(t)
	l, clock := limited(t, ratelimit.WithStore(store), ratelimit.WithLimit(ratelimit.PerMinute(1000)), ratelimit.WithFailure(ratelimit.FailClosed), ratelimit.WithLogger(logger))
	store.mode.Store(fails)
	for range 5 {
		_, err := l.Allow(context.Background(), "k")
		require.Error(t, err)
	}
	store.mode.Store(works)
	clock.Advance(-time.Hour)
	_, _ = l.Allow(context.Background(), "k") // sets off the probe
	assert.Eventually(t, func() bool { return strings.Contains(logged(), "answers again") }, 5*time.Second, time.Millisecond)
}

func TestARefundGoesToTheStoreThatCounted(t *testing.T) {
	store := newFaulty()
	logger, _ := logTo(t)
	l, _ := limited(t, ratelimit.WithStore(store), ratelimit.WithLimit(ratelimit.PerMinute(1)), ratelimit.WithLogger(logger), ratelimit.WithRefund(func(c *gin.Context) bool { return true }))
	r := engine(l.Middleware())
	for _, mode := range []int32{works, fails, works, fails} {
		store.mode.Store(mode)
		assert.Equal(t, 200, get(r).StatusCode)
	}
}

func TestARefundThatFailsIsObserved(t *testing.T) {
	store := newFaulty()
	var seen recorder
	l, _ := limited(t, ratelimit.WithStore(failingRefund{store}), ratelimit.WithLimit(ratelimit.PerMinute(1)), ratelimit.WithObserver(seen.observe), ratelimit.WithRefund(func(*gin.Context) bool { return true }))
	assert.Equal(t, 200, get(engine(l.Middleware())).StatusCode)
	require.Len(t, seen.events, 2)
	assert.NoError(t, seen.events[0].Err)
	assert.ErrorIs(t, seen.events[1].Err, errRefund)
	assert.ErrorContains(t, seen.events[1].Err, "ratelimit: refund: ")
}

var errRefund = errors.New("no refunds")

type failingRefund struct{ ratelimit.Store }

func (failingRefund) Refund(context.Context, *ratelimit.Policy, string, int, []time.Duration) error {
	return errRefund
}

// An outage is one way for Redis to fail, and to come back.
type outage struct {
	name   string
	server []string // its arguments
	fail   func(t *testing.T, s *redisServer)
	mend   func(t *testing.T, s *redisServer)
	slow   bool // the first calls end at the deadline
}

func admin(t *testing.T, s *redisServer, args ...any) {
	t.Helper()
	require.NoError(t, s.client().Do(context.Background(), args...).Err())
}

var outages = []outage{
	{
		name: "refused",
		fail: func(_ *testing.T, s *redisServer) { s.kill() },
		mend: func(_ *testing.T, s *redisServer) { s.start() },
	},
	{
		name: "hung", slow: true,
		fail: func(_ *testing.T, s *redisServer) { s.signal(syscall.SIGSTOP) },
		mend: func(_ *testing.T, s *redisServer) { s.signal(syscall.SIGCONT) },
	},
	{
		name: "CLIENT PAUSE", slow: true,
		fail: func(t *testing.T, s *redisServer) { admin(t, s, "client", "pause", "60000", "write") },
		mend: func(t *testing.T, s *redisServer) { admin(t, s, "client", "unpause") },
	},
	{
		name: "out of memory",
		fail: func(t *testing.T, s *redisServer) { admin(t, s, "config", "set", "maxmemory", "1") },
		mend: func(t *testing.T, s *redisServer) { admin(t, s, "config", "set", "maxmemory", "0") },
	},
	{
		name: "read-only replica",
		fail: func(t *testing.T, s *redisServer) { admin(t, s, "replicaof", "127.0.0.1", "1") },
		mend: func(t *testing.T, s *redisServer) { admin(t, s, "replicaof", "no", "one") },
	},
	{
		name: "wrong password",
		fail: func(t *testing.T, s *redisServer) {
			admin(t, s, "config", "set", "requirepass", "secret")
			c := s.client(func(o *redis.Options) { o.Password = "secret" })
			require.NoError(t, c.Do(context.Background(), "client", "kill", "type", "normal", "skipme", "yes").Err())
		},
		mend: func(t *testing.T, s *redisServer) {
			c := s.client(func(o *redis.Options) { o.Password = "secret" })
			require.NoError(t, c.ConfigSet(context.Background(), "requirepass", "").Err())
		},
	},
}

func TestAnOutageOfRedisIsBoundedInTimeAndOverWhenRedisIsBack(t *testing.T) {
	for _, o := range outages {
		for _, bounded := range []bool{true, false} {
			name := o.name
			if !bounded {
				name += ", client without ContextTimeoutEnabled"
			}
			t.Run(name, func(t *testing.T) {
				server := startRedis(t, o.server...)
				logger, logged := logTo(t)
				client := server.client(func(c *redis.Options) { c.ContextTimeoutEnabled, c.ReadTimeout = bounded, time.Second })
				const timeout = 100 * time.Millisecond
				l := must(ratelimit.NewLimiter(ratelimit.WithStore(ratelimit.NewRedisStore(client)), ratelimit.WithLimit(ratelimit.PerHour(1_000_000)), ratelimit.WithLogger(logger), ratelimit.WithTimeout(timeout)))
				srv := httptest.NewServer(engine(l.Middleware()))
				defer srv.Close()
				defer srv.Client().CloseIdleConnections()
				ask := func() (headers bool, took time.Duration) {
					start := time.Now()
					resp, err := srv.Client().Get(srv.URL)
					require.NoError(t, err)
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
					require.Equal(t, 200, resp.StatusCode)
					return resp.Header.Get("X-RateLimit-Limit") != "", time.Since(start)
				}
				require.Eventually(t, func() bool { ok, _ := ask(); return ok }, 5*time.Second, 10*time.Millisecond)

				o.fail(t, server)
				goroutines := runtime.NumGoroutine()
				for range 5 {
					headers, took := ask()
					assert.False(t, headers, "degraded")
					assert.Less(t, took, timeout+400*time.Millisecond, "bounded by WithTimeout, with room for a busy machine")
					if o.slow {
						assert.GreaterOrEqual(t, took, timeout)
					}
				}
				start := time.Now()
				for range 200 {
					headers, _ := ask()
					assert.False(t, headers)
				}
				assert.Less(t, time.Since(start), 2*time.Second, "200 requests, none of which waits for Redis")
				assert.Less(t, runtime.NumGoroutine(), goroutines+40, "no pile-up")
				assert.Equal(t, 1, strings.Count(logged(), "does not answer"))

				o.mend(t, server)
				mended := time.Now()
				require.Eventually(t, func() bool { ok, _ := ask(); return ok }, 10*time.Second, 10*time.Millisecond)
				assert.Less(t, time.Since(mended), 4*time.Second, "within a second or two, with room for a busy machine")
				assert.Equal(t, 1, strings.Count(logged(), "answers again"))
			})
		}
	}
}

func TestRedisKilledUnderLoadNeitherFailsARequestNorPilesUp(t *testing.T) {
	server := startRedis(t)
	logger, _ := logTo(t)
	l := must(ratelimit.NewLimiter(ratelimit.WithStore(ratelimit.NewRedisStore(server.client())), ratelimit.WithLimit(ratelimit.PerHour(1_000_000)), ratelimit.WithLogger(logger)))
	srv := httptest.NewServer(engine(l.Middleware()))
	defer srv.Close()
	defer srv.Client().CloseIdleConnections()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var requests, shared atomic.Int64
	for range 8 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				resp, err := srv.Client().Get(srv.URL)
				if !assert.NoError(t, err) {
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				assert.Equal(t, 200, resp.StatusCode)
				requests.Add(1)
				if resp.Header.Get("X-RateLimit-Limit") != "" {
					shared.Add(1)
				}
			}
		})
	}
	waitFor := func(n *atomic.Int64) {
		from := n.Load()
		require.Eventually(t, func() bool { return n.Load() > from+50 }, 20*time.Second, time.Millisecond)
	}
	for range 2 {
		waitFor(&shared)
		server.kill()
		waitFor(&requests)
		server.start()
		waitFor(&shared)
	}
	close(stop)
	wg.Wait()
}

// cutProxy passes commands on and, when told to, drops one connection after the
// server has answered, so that the answer is lost.
type cutProxy struct {
	net.Listener
	target string
	cut    atomic.Bool
}

func startCutProxy(t *testing.T, target string) *cutProxy {
	t.Helper()
	p := &cutProxy{target: target}
	p.Listener = acceptEach(t, p.serve, func() {})
	return p
}

// acceptEach listens on a free port and serves each connection until the test
// ends; cut then closes those that are open still.
func acceptEach(t *testing.T, serve func(net.Conn), cut func()) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { serve(client) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		cut()
		wg.Wait()
	})
	return listener
}

func (p *cutProxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		_, _ = io.Copy(server, client)
		_ = server.(*net.TCPConn).CloseWrite()
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := server.Read(buf) // the server has done its work
		if err != nil || p.cut.CompareAndSwap(true, false) {
			return
		}
		if _, err := client.Write(buf[:n]); err != nil {
			return
		}
	}
}

func TestARequestWhoseAnswerIsLostIsCountedAtMostOnce(t *testing.T) {
	server := startRedis(t)
	proxy := startCutProxy(t, server.addr)
	direct := server.client()
	ctx := context.Background()
	for _, algorithm := range algorithms {
		for _, kind := range []string{"client", "autopipeliner"} {
			t.Run(algorithm.String()+"/"+kind, func(t *testing.T) {
				logger, _ := logTo(t)
				limit := []ratelimit.Option{ratelimit.WithName(algorithm.String() + "-" + kind), ratelimit.WithAlgorithm(algorithm), ratelimit.WithLimit(ratelimit.PerDay(100)), ratelimit.WithLogger(logger)}
				retrying := redis.NewClient(&redis.Options{Addr: proxy.Addr().String(), MaxRetries: 5, MinRetryBackoff: time.Millisecond, MaxRetryBackoff: time.Millisecond})
				defer retrying.Close()
				var client ratelimit.RedisClient = retrying
				if kind == "autopipeliner" {
					pipeliner := must(retrying.AutoPipeline())
					defer pipeliner.Close()
					client = pipeliner
				}
				through := redisLimiter(append(limit, ratelimit.WithStore(ratelimit.NewRedisStore(client)))...)
				_, err := through.Allow(ctx, "k")
				require.NoError(t, err)
				proxy.cut.Store(true)
				_, err = through.Allow(ctx, "k")
				require.ErrorIs(t, err, ratelimit.ErrStoreUnavailable)
				after := redisLimiter(append(limit, ratelimit.WithStore(ratelimit.NewRedisStore(direct)))...)
				assert.Equal(t, 98, must(after.Peek(ctx, "k")).Remaining, "two requests, two counted")
			})
		}
	}
}

// A switchedClient is a Redis that can be switched off.
type switchedClient struct {
	*redis.Client
	off   atomic.Bool
	calls atomic.Int32
}

func (c *switchedClient) Process(ctx context.Context, cmd redis.Cmder) error {
	c.calls.Add(1)
	if c.off.Load() {
		return io.ErrUnexpectedEOF
	}
	return c.Client.Process(ctx, cmd)
}

func TestDenialsFromTheCacheDoNotHideThatRedisIsDown(t *testing.T) {
	for name, wrap := range map[string]func(ratelimit.Store) ratelimit.Store{
		"a RedisStore":      func(s ratelimit.Store) ratelimit.Store { return s },
		"one that wraps it": func(s ratelimit.Store) ratelimit.Store { return struct{ ratelimit.Store }{s} },
	} {
		t.Run(name, func(t *testing.T) {
			_, mini := startMini(t, time.Now())
			client := &switchedClient{Client: mini}
			clock := ratelimittest.NewClock() // stands still: no denial is asked about again
			logger, logged := logTo(t)
			l := must(ratelimit.NewLimiter(ratelimit.WithStore(wrap(ratelimit.NewRedisStore(client, ratelimit.WithClock(clock.Now)))), ratelimit.WithLimit(ratelimit.PerHour(1)),
				ratelimit.WithFailure(ratelimit.FailClosed), ratelimit.WithTimeout(30*time.Second), ratelimit.WithClock(clock.Now), ratelimit.WithLogger(logger)))
			ctx := context.Background()
			require.True(t, must(l.Allow(ctx, "hammers")).Allowed)
			require.False(t, must(l.Allow(ctx, "hammers")).Allowed)

			client.off.Store(true)
			client.calls.Store(0)
			for i := range 20 {
				_, _ = l.Allow(ctx, "hammers") // from the cache, as long as Redis is asked at all
				_, err := l.Allow(ctx, key("other", i))
				require.ErrorIs(t, err, ratelimit.ErrStoreUnavailable)
			}
			assert.EqualValues(t, 5, client.calls.Load(), "five failures in a row, and Redis is not asked any more")
			assert.Contains(t, logged(), "the store does not answer")
		})
	}
}

func TestARefundIsGivenBackAlsoWhereTheClientHasHungUp(t *testing.T) {
	l, _ := limited(t, ratelimit.WithStore(newFaulty()), ratelimit.WithLimit(ratelimit.PerMinute(1)), ratelimit.WithRefund(func(*gin.Context) bool { return true }))
	ctx, cancel := context.WithCancel(context.Background())
	r := engine(l.Middleware(), func(*gin.Context) { cancel() })
	r.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx))
	assert.Equal(t, 1, must(l.Peek(context.Background(), "ip:192.0.2.1")).Remaining)
}
