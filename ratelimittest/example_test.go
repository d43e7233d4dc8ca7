package ratelimittest_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/aed328ba/ratelimit"
	"github.com/aed328ba/ratelimit/ratelimittest"
	"github.com/gin-gonic/gin"
)

// newRouter is the application under test. It takes its clock as an option.
func newRouter(opts ...ratelimit.Option) *gin.Engine {
	router := gin.New()
	router.POST("/login", ratelimit.New(append(opts, ratelimit.WithLimit(ratelimit.PerMinute(5)))...), func(c *gin.Context) {
		c.Status(http.StatusUnauthorized)
	})
	return router
}

// The limit of a login, in the test of a Gin application.
func ExampleClient() {
	t := new(testing.T) // the argument of your test

	clock := ratelimittest.NewClock()
	client := ratelimittest.NewClient(t, newRouter(ratelimit.WithClock(clock.Now)))

	fmt.Println(client.Exhaust("POST", "/login"), "attempts")
	ratelimittest.AssertDenied(t, client.Send("POST", "/login"))
	ratelimittest.AssertRemaining(t, client.From("203.0.113.8").Send("POST", "/login"), 4)

	clock.Advance(time.Minute)
	ratelimittest.AssertRemaining(t, client.Send("POST", "/login"), 4)

	fmt.Println("failed:", t.Failed())
	// Output:
	// 5 attempts
	// failed: false
}

func ExampleClock() {
	clock := ratelimittest.NewClock()
	limiter, _ := ratelimit.NewLimiter(ratelimit.WithClock(clock.Now), ratelimit.WithLimit(ratelimit.PerDay(1)))

	for range 3 {
		res, _ := limiter.Allow(context.Background(), "user:42")
		fmt.Println(res.Allowed, res.RetryAfter)
		clock.Advance(12 * time.Hour)
	}
	// Output:
	// true 0s
	// false 12h0m0s
	// true 0s
}

func ExampleFaultyStore() {
	t := new(testing.T) // the argument of your test

	store := ratelimittest.NewFaultyStore(ratelimit.NewMemoryStore())
	client := ratelimittest.NewClient(t, newRouter(ratelimit.WithStore(store)))

	fmt.Println(client.Send("POST", "/login").StatusCode)
	store.Fail(nil)
	_ = client.Send("POST", "/login") // what does your application answer?
	store.Heal()
	fmt.Println(client.Send("POST", "/login").StatusCode)
	fmt.Println(store.Calls(), "calls")
	// Output:
	// 401
	// 401
	// 3 calls
}

func ExampleRecorder() {
	t := new(testing.T) // the argument of your test

	rec := ratelimittest.NewRecorder()
	client := ratelimittest.NewClient(t, newRouter(ratelimit.WithObserver(rec.Observe)))
	client.Exhaust("POST", "/login")

	fmt.Println(rec.Allowed(), "allowed,", rec.Denied(), "denied")
	last, _ := rec.Last()
	fmt.Println(last.Route, last.Result.Limit)
	// Output:
	// 5 allowed, 1 denied
	// POST /login 5/minute
}

// A store of your own, in a test of its own. The times of this one come from
// the time package, so that nothing needs to be waited for in a bubble of
// testing/synctest.
func ExampleTestStore() {
	_ = func(t *testing.T) { // func TestSpread(t *testing.T) {
		ratelimittest.TestStore(t, func(t *testing.T) ratelimit.Store {
			return spread{ratelimit.NewMemoryStore(), ratelimit.NewMemoryStore(), ratelimit.NewMemoryStore()}
		}, ratelimittest.WithSynctest())
	}
}
