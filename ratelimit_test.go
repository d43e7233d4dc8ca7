package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aed328ba/ratelimit"
	"github.com/aed328ba/ratelimit/ratelimittest"
	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOneOptionIsEnoughToLimitByIP(t *testing.T) {
	r := engine(ratelimit.New(ratelimit.WithLimit(ratelimit.PerMinute(3))))
	for range 3 {
		assert.Equal(t, http.StatusOK, get(r, "peer: 203.0.113.7:1").StatusCode)
	}
	assert.Equal(t, http.StatusTooManyRequests, get(r, "peer: 203.0.113.7:2").StatusCode)
	assert.Equal(t, http.StatusOK, get(r, "peer: 203.0.113.8:1").StatusCode, "another client")
}

func TestUsersCanTestTheirLimitsInASynctestBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := engine(ratelimit.New(ratelimit.WithLimit(ratelimit.PerDay(1))))
		assert.Equal(t, 200, get(r).StatusCode)
		assert.Equal(t, 429, get(r).StatusCode)
		time.Sleep(24*time.Hour - time.Nanosecond)
		assert.Equal(t, 429, get(r).StatusCode)
		time.Sleep(time.Nanosecond)
		assert.Equal(t, 200, get(r).StatusCode)
	})
}

// limited returns a limiter on a clock that stands still.
func limited(t *testing.T, opts ...ratelimit.Option) (*ratelimit.Limiter, *ratelimittest.Clock) {
	t.Helper()
	clock := ratelimittest.NewClock()
	l, err := ratelimit.NewLimiter(append([]ratelimit.Option{ratelimit.WithClock(clock.Now)}, opts...)...)
	require.NoError(t, err)
	return l, clock
}

func TestAClientThatWaitsRetryAfterIsAdmittedAndOneThatComesEarlierIsNot(t *testing.T) {
	ctx := context.Background()
	for _, algorithm := range algorithms {
		for _, limit := range []ratelimit.Limit{ratelimit.PerSecond(3), ratelimit.PerMinute(7), ratelimit.Per(3, 1500*time.Microsecond), ratelimit.PerDay(1), ratelimit.Per(11, 7*time.Second)} {
			for cost := 1; cost <= min(3, limit.Requests); cost++ {
				t.Run(fmt.Sprintf("%v/%v/cost=%d", algorithm, limit, cost), func(t *testing.T) {
					l, clock := limited(t, ratelimit.WithLimit(limit), ratelimit.WithAlgorithm(algorithm))
					for range 50 {
						clock.Advance(limit.Period / 13)
						r := must(l.AllowN(ctx, "k", cost))
						if r.Allowed {
							assert.Zero(t, r.RetryAfter)
							continue
						}
						require.Positive(t, r.RetryAfter)
						clock.Advance(r.RetryAfter - 1)
						require.False(t, must(l.AllowN(ctx, "k", cost)).Allowed, "a nanosecond early")
						clock.Advance(1)
						require.True(t, must(l.AllowN(ctx, "k", cost)).Allowed)
					}
				})
			}
		}
	}
}

func TestNoFractionOfARequestIsLostOverALongRun(t *testing.T) {
	ctx := context.Background()
	for _, limit := range []ratelimit.Limit{ratelimit.PerSecond(3), ratelimit.PerSecond(7), ratelimit.PerSecond(20_000), ratelimit.Per(100_003, time.Second), ratelimit.Per(45, 25*time.Second)} {
		l, clock := limited(t, ratelimit.WithLimit(limit.WithBurst(2)), ratelimit.WithAlgorithm(ratelimit.TokenBucket))
		start := clock.Now()
		n := 2*limit.Requests + 2 // the first two are the burst
		for range n {
			r := must(l.Allow(ctx, "k"))
			if !r.Allowed {
				clock.Advance(r.RetryAfter)
				require.True(t, must(l.Allow(ctx, "k")).Allowed)
			}
		}
		// Each wait is rounded up to a nanosecond, the TAT is not.
		assert.InDelta(t, 2*limit.Period, clock.Now().Sub(start), float64(time.Nanosecond), limit)
	}
}

func TestThePromiseOfEachAlgorithmHoldsAgainstAnAdversaryWhoKnowsTheBoundaries(t *testing.T) {
	const limit = 10
	for algorithm, want := range map[ratelimit.Algorithm]int{
		ratelimit.FixedWindow: 2*limit - 1, ratelimit.SlidingWindowLog: limit,
		ratelimit.SlidingWindowCounter: 2*limit - 1, ratelimit.TokenBucket: 2*limit - 1,
	} {
		l, clock := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(limit)), ratelimit.WithAlgorithm(algorithm))
		var times []time.Duration
		start := clock.Now()
		ask := func() {
			if must(l.Allow(context.Background(), "k")).Allowed {
				times = append(times, clock.Now().Sub(start))
			}
		}
		// One to open the window, the rest just before it ends, and then as
		// many as possible for two minutes.
		ask()
		clock.Advance(time.Minute - time.Millisecond)
		for range limit {
			ask()
		}
		for range 130 * 1000 {
			clock.Advance(time.Millisecond)
			ask()
		}
		most := 0
		for i := range times {
			n := 0
			for _, other := range times[i:] {
				if other-times[i] < time.Minute {
					n++
				}
			}
			most = max(most, n)
		}
		assert.LessOrEqual(t, most, want, algorithm)
		if algorithm != ratelimit.SlidingWindowCounter {
			assert.Equal(t, want, most, "%v: the worst case is as documented", algorithm)
		}
	}
}

func TestSeveralLimitsHoldTogether(t *testing.T) {
	ctx := context.Background()
	for _, algorithm := range algorithms {
		t.Run(algorithm.String(), func(t *testing.T) {
			l, clock := limited(t, ratelimit.WithAlgorithm(algorithm), ratelimit.WithLimit(ratelimit.PerSecond(2), ratelimit.PerHour(3)))
			assert.Equal(t, 1, must(l.Allow(ctx, "k")).Remaining)
			assert.Equal(t, 0, must(l.Allow(ctx, "k")).Remaining)
			for range 10 {
				r := must(l.Allow(ctx, "k"))
				assert.False(t, r.Allowed)
				assert.Equal(t, ratelimit.PerSecond(2), r.Limit, "the limit with least remaining")
				assert.LessOrEqual(t, r.RetryAfter, 2*time.Second, "that of the second, not of the hour")
			}
			clock.Advance(2 * time.Second)
			r := must(l.Allow(ctx, "k"))
			assert.True(t, r.Allowed, "what the second denied, the hour did not count")
			assert.Equal(t, ratelimit.PerHour(3), r.Limit)
			clock.Advance(2 * time.Second)
			r = must(l.Allow(ctx, "k"))
			assert.False(t, r.Allowed)
			assert.Greater(t, r.RetryAfter, 10*time.Minute, "the longest wait of those exceeded")
		})
	}
}

func TestCostsThatCanNeverBeAdmittedAreErrors(t *testing.T) {
	ctx := context.Background()
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerSecond(10), ratelimit.PerHour(5)))
	for _, cost := range []int{0, -1, -1 << 31} {
		_, err := l.AllowN(ctx, "k", cost)
		assert.ErrorIs(t, err, ratelimit.ErrInvalidCost)
		assert.ErrorIs(t, l.Refund(ctx, "k", cost), ratelimit.ErrInvalidCost)
	}
	r, err := l.AllowN(ctx, "k", 6)
	assert.ErrorIs(t, err, ratelimit.ErrCostExceedsLimit)
	assert.EqualError(t, err, "ratelimit: cost exceeds the limit: 6 is more than 5/hour ever admits at once")
	assert.False(t, r.Allowed)
	assert.ErrorIs(t, l.Refund(ctx, "k", 6), ratelimit.ErrCostExceedsLimit)
	assert.Equal(t, 5, must(l.Peek(ctx, "k")).Remaining, "nothing was consumed")

	bucket, _ := limited(t, ratelimit.WithAlgorithm(ratelimit.TokenBucket), ratelimit.WithLimit(ratelimit.PerSecond(10).WithBurst(20)))
	assert.True(t, must(bucket.AllowN(ctx, "k", 20)).Allowed, "a burst may be larger than the rate")
	_, err = bucket.AllowN(ctx, "k", 21)
	assert.ErrorIs(t, err, ratelimit.ErrCostExceedsLimit)
}

func TestPeekConsumesNothing(t *testing.T) {
	ctx := context.Background()
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(1)))
	for range 3 {
		assert.Equal(t, ratelimit.Result{Allowed: true, Limit: ratelimit.PerMinute(1), Remaining: 1}, must(l.Peek(ctx, "k")))
	}
	_ = must(l.Allow(ctx, "k"))
	assert.Equal(t, ratelimit.Result{Limit: ratelimit.PerMinute(1), RetryAfter: time.Minute, ResetAfter: time.Minute}, must(l.Peek(ctx, "k")))
}

func TestRefundAndReset(t *testing.T) {
	ctx := context.Background()
	for _, algorithm := range algorithms {
		l, _ := limited(t, ratelimit.WithAlgorithm(algorithm), ratelimit.WithLimit(ratelimit.PerMinute(5)))
		_ = must(l.AllowN(ctx, "k", 5))
		require.NoError(t, l.Refund(ctx, "k", 2))
		assert.Equal(t, 2, must(l.Peek(ctx, "k")).Remaining, algorithm)
		require.NoError(t, l.Refund(ctx, "k", 5))
		assert.Equal(t, 5, must(l.Peek(ctx, "k")).Remaining, "never above full")
		require.NoError(t, l.Refund(ctx, "never seen", 5))
		_ = must(l.AllowN(ctx, "k", 5))
		require.NoError(t, l.Reset(ctx, "k"))
		assert.Equal(t, ratelimit.Result{Allowed: true, Limit: ratelimit.PerMinute(5), Remaining: 5}, must(l.Peek(ctx, "k")))
	}
}

func TestACanceledCallIsItsContextsErrorAndConsumesNothing(t *testing.T) {
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(1)))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := l.Allow(ctx, "k")
	assert.ErrorIs(t, err, context.Canceled)
	assert.True(t, must(l.Allow(context.Background(), "k")).Allowed)
	assert.ErrorIs(t, l.Reset(ctx, "k"), context.Canceled)
	assert.ErrorIs(t, l.Refund(ctx, "k", 1), context.Canceled)
	assert.False(t, must(l.Allow(context.Background(), "k")).Allowed, "nothing was given back")
}

func TestARequestWhoseClientHungUpDoesNotRun(t *testing.T) {
	ran := false
	r := gin.New()
	r.Use(ratelimit.New(ratelimit.WithLimit(ratelimit.PerMinute(1))))
	r.GET("/", func(*gin.Context) { ran = true })
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	w := httptest.NewRecorder()
	r.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx))
	assert.False(t, ran)
	assert.Equal(t, 200, get(r).StatusCode, "and was not counted")
}

func TestDifferentLimitersOnDifferentGroupsAreIndependent(t *testing.T) {
	r := gin.New()
	ok := func(c *gin.Context) { c.Status(http.StatusOK) }
	r.Group("/a", ratelimit.New(ratelimit.WithLimit(ratelimit.PerMinute(1)))).GET("", ok)
	r.Group("/b", ratelimit.New(ratelimit.WithLimit(ratelimit.PerMinute(2)))).GET("", ok)
	assert.Equal(t, 200, send(r, "GET", "/a").StatusCode)
	assert.Equal(t, 429, send(r, "GET", "/a").StatusCode)
	assert.Equal(t, 200, send(r, "GET", "/b").StatusCode)
	assert.Equal(t, 200, send(r, "GET", "/b").StatusCode)
	assert.Equal(t, 429, send(r, "GET", "/b").StatusCode)
}

func TestStackedLimitersAddUpAndTheStricterNumbersStay(t *testing.T) {
	for name, limits := range map[string][2]ratelimit.Limit{
		"strict outside": {ratelimit.PerMinute(2), ratelimit.PerHour(100)},
		"strict inside":  {ratelimit.PerHour(100), ratelimit.PerMinute(2)},
	} {
		t.Run(name, func(t *testing.T) {
			r := engine(ratelimit.New(ratelimit.WithLimit(limits[0])), ratelimit.New(ratelimit.WithLimit(limits[1])))
			for i := range 3 {
				resp := get(r)
				assert.Equal(t, "2", resp.Header.Get("X-RateLimit-Limit"))
				assert.Equal(t, strconv.Itoa(max(0, 1-i)), resp.Header.Get("X-RateLimit-Remaining"))
				assert.Equal(t, i == 2, resp.StatusCode == 429)
			}
		})
	}
}

func TestOneLimiterDecidesOnceForARequest(t *testing.T) {
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(2)))
	others := make([]gin.HandlerFunc, 5)
	for i := range others {
		others[i] = ratelimit.New(ratelimit.WithLimit(ratelimit.PerMinute(100)))
	}
	chain := append(append([]gin.HandlerFunc{l.Middleware(), l.Middleware()}, others...), append(others, l.Middleware())...)
	r := engine(chain...)
	resp := get(r)
	assert.Equal(t, 200, resp.StatusCode)
	assert.Equal(t, "1", resp.Header.Get("X-RateLimit-Remaining"))
}

func TestCORSPreflightsPassUncounted(t *testing.T) {
	r := engine(ratelimit.New(ratelimit.WithLimit(ratelimit.PerMinute(1))))
	r.OPTIONS("/", func(c *gin.Context) { c.Status(http.StatusNoContent) })
	for range 3 {
		resp := send(r, "OPTIONS", "/", "Origin: https://example.com", "Access-Control-Request-Method: GET")
		assert.Equal(t, http.StatusNoContent, resp.StatusCode)
		assert.Empty(t, resp.Header.Get("X-RateLimit-Limit"))
	}
	assert.Equal(t, 204, send(r, "OPTIONS", "/").StatusCode, "an OPTIONS that is no preflight counts")
	assert.Equal(t, 429, send(r, "OPTIONS", "/", "Origin: https://example.com").StatusCode)
}

func TestSkippedRequestsPassUncounted(t *testing.T) {
	r := engine(ratelimit.New(ratelimit.WithLimit(ratelimit.PerMinute(1)), ratelimit.WithSkip(func(c *gin.Context) bool { return c.GetHeader("X-Probe") != "" })))
	for range 3 {
		assert.Equal(t, 200, get(r, "X-Probe: 1").StatusCode)
	}
	assert.Equal(t, 200, get(r).StatusCode)
	assert.Equal(t, 429, get(r).StatusCode)
}

func TestCostOfARequest(t *testing.T) {
	logger, logged := logTo(t)
	r := engine(ratelimit.New(ratelimit.WithLimit(ratelimit.PerMinute(10)), ratelimit.WithLogger(logger),
		ratelimit.WithCost(func(c *gin.Context) int { n, _ := strconv.Atoi(c.GetHeader("Cost")); return n })))
	remaining := func(cost string) string { return get(r, "Cost: "+cost).Header.Get("X-RateLimit-Remaining") }
	assert.Equal(t, "6", remaining("4"))
	assert.Equal(t, "", remaining("0"), "0 counts nothing")
	assert.Equal(t, "5", remaining("1"))
	assert.Empty(t, logged())
	assert.Equal(t, "4", remaining("-100"), "below 0 counts as 1")
	assert.Equal(t, "3", remaining("-1"))
	assert.Contains(t, logged(), "returned -100; the request is counted as 1")
	assert.NotContains(t, logged(), "-1;", "once")

	resp := get(r, "Cost: 11")
	assert.Equal(t, 429, resp.StatusCode)
	assert.NotContains(t, resp.Header, "Retry-After", "waiting does not help")
	body, _ := io.ReadAll(resp.Body)
	assert.JSONEq(t, `{"type":"about:blank","title":"Too Many Requests","status":429,"detail":"The request costs more than the rate limit of 10/minute can ever admit."}`, string(body))
	assert.Equal(t, "2", remaining("1"), "and consumed nothing")
}

func TestLimitsByPlan(t *testing.T) {
	logger, logged := logTo(t)
	plans := map[string][]ratelimit.Limit{
		"gold": {ratelimit.PerMinute(5)}, "two": {ratelimit.PerMinute(3), ratelimit.PerHour(2)},
		"none": {}, "zero": {{}}, "nine": make([]ratelimit.Limit, 9),
	}
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(1)), ratelimit.WithLogger(logger),
		ratelimit.WithKeyFunc(ratelimit.KeyByHeader("User")),
		ratelimit.WithLimitFunc(func(c *gin.Context) []ratelimit.Limit { return plans[c.GetHeader("Plan")] }))
	r := engine(l.Middleware())
	admitted := func(user, plan string) (n int) {
		for range 10 {
			if get(r, "User: "+user, "Plan: "+plan).StatusCode == 200 {
				n++
			}
		}
		return n
	}
	assert.Equal(t, 5, admitted("a", "gold"))
	assert.Equal(t, 2, admitted("b", "two"))
	assert.Equal(t, 1, admitted("c", "none"), "the default")
	assert.Equal(t, 1, admitted("d", "unknown"))
	assert.Empty(t, logged())
	assert.Equal(t, 1, admitted("e", "zero"), "what cannot be enforced is never no limit")
	assert.Equal(t, 1, admitted("f", "nine"))
	assert.Contains(t, logged(), "cannot be enforced")

	for i := range 10_000 { // every tenant a number of its own
		plans["p"] = []ratelimit.Limit{ratelimit.PerMinute(i + 1)}
		require.Equal(t, 200, get(r, "User: p"+strconv.Itoa(i), "Plan: p").StatusCode)
	}
}

func TestRefundAsksAfterTheHandlersAndGivesBackInTheSameWindowOnly(t *testing.T) {
	for _, algorithm := range algorithms {
		t.Run(algorithm.String(), func(t *testing.T) {
			l, clock := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(2)), ratelimit.WithAlgorithm(algorithm),
				ratelimit.WithRefund(func(c *gin.Context) bool { return c.Writer.Status() < 400 }))
			r := gin.New()
			r.Use(gin.RecoveryWithWriter(io.Discard), l.Middleware())
			r.GET("/:status", func(c *gin.Context) {
				status, _ := strconv.Atoi(c.Param("status"))
				if status == 0 {
					panic("handler")
				}
				c.Status(status)
			})
			for range 5 {
				assert.Equal(t, 200, send(r, "GET", "/200").StatusCode, "only failures count")
			}
			assert.Equal(t, 401, send(r, "GET", "/401").StatusCode)
			assert.Equal(t, 500, send(r, "GET", "/0").StatusCode, "a panic is a failure: the status is 500")
			assert.Equal(t, 429, send(r, "GET", "/200").StatusCode)
			clock.Advance(2 * time.Minute)
			assert.Equal(t, 200, send(r, "GET", "/200").StatusCode)
		})
	}
}

func TestARefundOfAPanickingHandlerKeepsThePanic(t *testing.T) {
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(1)), ratelimit.WithRefund(func(c *gin.Context) bool { return c.Writer.Status() >= 500 }))
	r := gin.New()
	r.Use(gin.RecoveryWithWriter(io.Discard), l.Middleware())
	r.GET("/", func(*gin.Context) { panic("handler") })
	for range 3 { // never used up
		assert.Equal(t, 500, get(r).StatusCode)
	}
}

func TestALateRefundDoesNotReachTheNextWindow(t *testing.T) {
	for _, algorithm := range algorithms {
		t.Run(algorithm.String(), func(t *testing.T) {
			var clock *ratelimittest.Clock
			l, clock := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(5)), ratelimit.WithAlgorithm(algorithm), ratelimit.WithRefund(func(*gin.Context) bool { return true }))
			r := gin.New()
			r.Use(l.Middleware())
			r.GET("/", func(c *gin.Context) {
				clock.Advance(3 * time.Minute) // a slow handler
				_, _ = l.AllowN(c, l.Key(c), 5)
			})
			assert.Equal(t, 200, get(r).StatusCode)
			res := must(l.Peek(context.Background(), "ip:192.0.2.1"))
			assert.False(t, res.Allowed, "what the next window counted stays counted")
		})
	}
}

func TestDryRunDecidesAndIsObservedButTouchesNothing(t *testing.T) {
	var seen recorder
	store := ratelimit.NewMemoryStore()
	opts := []ratelimit.Option{ratelimit.WithStore(store), ratelimit.WithName("api"), ratelimit.WithLimit(ratelimit.PerMinute(2))}
	dry := must(ratelimit.NewLimiter(append(opts, ratelimit.WithDryRun(), ratelimit.WithObserver(seen.observe))...))
	r := engine(dry.Middleware(), func(c *gin.Context) {
		_, ok := ratelimit.FromContext(c)
		assert.False(t, ok)
	})
	for range 5 {
		resp := get(r)
		assert.Equal(t, 200, resp.StatusCode)
		assert.NotContains(t, resp.Header, "X-Ratelimit-Limit")
	}
	require.Len(t, seen.events, 5)
	assert.True(t, seen.events[1].Result.Allowed)
	assert.False(t, seen.events[2].Result.Allowed)
	assert.True(t, seen.events[2].DryRun)

	enforced := must(ratelimit.NewLimiter(opts...))
	assert.Equal(t, 2, must(enforced.Peek(context.Background(), "ip:192.0.2.1")).Remaining, "a budget of the same name is not touched")
}

func TestObserverSeesEveryDecisionAndNoKey(t *testing.T) {
	var seen recorder
	l, _ := limited(t, ratelimit.WithName("api"), ratelimit.WithLimit(ratelimit.PerMinute(1)), ratelimit.WithObserver(seen.observe), ratelimit.WithKeyFunc(ratelimit.KeyByHeader("X-API-Key")))
	r := engine(l.Middleware())
	get(r, "X-API-Key: secret")
	get(r, "X-API-Key: secret")
	send(r, "GET", "/nowhere", "X-API-Key: secret")
	_, _ = l.AllowN(context.Background(), "other", 7)
	require.Len(t, seen.events, 4)
	assert.Equal(t, "api", seen.events[0].Limiter)
	assert.Equal(t, "api", seen.events[0].Policy)
	assert.Equal(t, "GET /", seen.events[0].Route)
	assert.Equal(t, 1, seen.events[0].Cost)
	assert.True(t, seen.events[0].Result.Allowed)
	assert.False(t, seen.events[1].Result.Allowed)
	assert.Equal(t, "GET ", seen.events[2].Route)
	assert.Equal(t, "", seen.events[3].Route)
	assert.ErrorIs(t, seen.events[3].Err, ratelimit.ErrCostExceedsLimit)
	assert.Equal(t, seen.events[0].KeyHash(), seen.events[1].KeyHash())
	assert.NotEqual(t, seen.events[0].KeyHash(), seen.events[3].KeyHash())
	assert.Regexp(t, "^[0-9a-f]{32}$", seen.events[0].KeyHash())
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		assert.NotContains(t, fmt.Sprintf(format, seen.events[0]), "secret")
	}
	assert.Empty(t, ratelimit.Event{}.KeyHash())
}

func TestFromContextIsTheResultInTheHeaders(t *testing.T) {
	strict, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(2)), ratelimit.WithHeaders(ratelimit.HeadersNone))
	loose, _ := limited(t, ratelimit.WithLimit(ratelimit.PerHour(50)))
	var got ratelimit.Result
	r := engine(strict.Middleware(), loose.Middleware(), func(c *gin.Context) { got, _ = ratelimit.FromContext(c) })
	get(r)
	assert.Equal(t, ratelimit.Result{Allowed: true, Limit: ratelimit.PerMinute(2), Remaining: 1, ResetAfter: time.Minute}, got)

	c, _ := gin.CreateTestContext(httptest.NewRecorder())
	_, ok := ratelimit.FromContext(c)
	assert.False(t, ok)
}

func TestADenialAbortsWhateverTheUsersHandlerDoes(t *testing.T) {
	for name, handler := range map[string]gin.HandlerFunc{
		"writes nothing":  func(*gin.Context) {},
		"calls Next":      func(c *gin.Context) { c.Next() },
		"writes directly": func(c *gin.Context) { _, _ = c.Writer.WriteString("slow down") },
		"a status of its": func(c *gin.Context) { c.String(http.StatusServiceUnavailable, "slow down") },
	} {
		t.Run(name, func(t *testing.T) {
			ran := 0
			r := gin.New()
			r.Use(ratelimit.New(ratelimit.WithLimit(ratelimit.PerMinute(1)), ratelimit.WithDeniedHandler(handler)))
			r.GET("/", func(c *gin.Context) { ran++ })
			get(r)
			resp := get(r)
			assert.Equal(t, 1, ran)
			assert.GreaterOrEqual(t, resp.StatusCode, 429)
			assert.Equal(t, "60", resp.Header.Get("Retry-After"))
			assert.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
		})
	}
}

// A store of the user's own that fails.
type brokenStore struct{ ratelimit.Store }

func (brokenStore) Take(context.Context, *ratelimit.Policy, string, int, []ratelimit.Result) error {
	return errors.New("broken")
}

func TestHTTPFromEndToEndUnderLoad(t *testing.T) {
	const limit = 100
	srv := httptest.NewServer(engine(ratelimit.New(ratelimit.WithLimit(ratelimit.PerHour(limit)))))
	defer srv.Close()
	defer srv.Client().CloseIdleConnections()
	var admitted, denied atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 20 {
				resp, err := srv.Client().Get(srv.URL)
				if !assert.NoError(t, err) {
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				switch resp.StatusCode {
				case 200:
					admitted.Add(1)
				case 429:
					denied.Add(1)
				}
			}
		})
	}
	wg.Wait()
	assert.EqualValues(t, limit, admitted.Load())
	assert.EqualValues(t, 16*20-limit, denied.Load())
}

func TestEachOfManyLimitersDecidesOnceForARequest(t *testing.T) {
	var limiters []*ratelimit.Limiter
	var chain []gin.HandlerFunc
	for range 5 {
		l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(3)))
		limiters = append(limiters, l)
		chain = append(chain, l.Middleware())
	}
	get(engine(append(chain, chain...)...))
	for _, l := range limiters {
		assert.Equal(t, 2, must(l.Peek(context.Background(), "ip:192.0.2.1")).Remaining)
	}
}
