package ratelimittest

import (
	"context"
	"crypto/rand"
	"math"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aed328ba/ratelimit"
)

// TestStore checks that a store keeps what [ratelimit.Store] promises. Each
// rule is a subtest with a store of its own from newStore, and holds for each
// of the four algorithms.
//
// A store on real time is waited for: some two seconds in all. With
// [WithAdvance] or [WithSynctest] nothing is, and times are checked to the
// unit of the store. Keys are random, so that stores may share a server, and a
// server may have been used before.
func TestStore(t *testing.T, newStore func(t *testing.T) ratelimit.Store, opts ...StoreOption) {
	t.Helper()
	s := &suite{grain: time.Millisecond}
	for _, o := range opts {
		o(s)
	}
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			if s.bubble {
				synctest.Test(t, func(t *testing.T) { s.check(t, newStore(t), r) })
				return
			}
			s.check(t, newStore(t), r)
		})
	}
}

// A StoreOption is a setting of [TestStore].
type StoreOption func(*suite)

// WithAdvance says how to let time pass for a store whose clock a test can
// move: clock.Advance, where every store that newStore returns reads clock. The
// default is to wait.
func WithAdvance(advance func(time.Duration)) StoreOption {
	return func(s *suite) { s.advance = advance }
}

// WithSynctest runs each rule in a bubble of [testing/synctest], in which
// waiting takes no time: for stores that read the time package and talk to
// nothing outside of the test. newStore is called in the bubble.
func WithSynctest() StoreOption {
	return func(s *suite) { s.bubble = true }
}

// WithGrain says how exact the store's times are: it may do things that much
// earlier or later than it said. The default is 1 ms, in which Redis keeps the
// end of a key; 0 is exact to the nanosecond.
func WithGrain(d time.Duration) StoreOption {
	return func(s *suite) { s.grain = max(0, d) }
}

type suite struct {
	advance func(time.Duration)
	bubble  bool
	grain   time.Duration
}

// realTime is whether the tests have to wait, and cannot know for how long.
func (s *suite) realTime() bool { return s.advance == nil && !s.bubble }

// A rule is one promise of the contract.
type rule struct {
	name string
	hold func(*checker)
}

// check looks whether r holds for each algorithm. On real time, they wait at
// the same time.
func (s *suite) check(t *testing.T, store ratelimit.Store, r rule) {
	t.Helper()
	var wg sync.WaitGroup
	for algorithm := ratelimit.FixedWindow; algorithm <= ratelimit.TokenBucket; algorithm++ {
		wg.Go(func() {
			r.hold(&checker{suite: s, t: t, store: store, algorithm: algorithm, started: time.Now()})
		})
		if !s.realTime() {
			wg.Wait()
		}
	}
	wg.Wait()
}

// A checker is what one rule knows while it looks at one algorithm.
type checker struct {
	*suite
	t         *testing.T
	store     ratelimit.Store
	algorithm ratelimit.Algorithm
	started   time.Time
	advanced  time.Duration
}

func (c *checker) errorf(format string, args ...any) {
	c.t.Helper()
	c.t.Errorf("%v: "+format, append([]any{c.algorithm}, args...)...)
}

// fatalf ends the goroutine, which is not always that of the test.
func (c *checker) fatalf(format string, args ...any) {
	c.t.Helper()
	c.errorf(format, args...)
	runtime.Goexit()
}

// must fails the test on an error of the store, which none of the rules expects.
func (c *checker) must(err error) {
	c.t.Helper()
	if err != nil {
		c.fatalf("the store failed: %v", err)
	}
}

// want checks a number.
func (c *checker) want(what string, want, got int) {
	c.t.Helper()
	if got != want {
		c.errorf("%s: want %d, got %d", what, want, got)
	}
}

// wait lets d pass.
func (c *checker) wait(d time.Duration) {
	switch {
	case d <= 0:
	case c.advance != nil:
		c.advance(d)
		c.advanced += d
	default:
		time.Sleep(d)
	}
}

// now is how much time has passed since the rule began.
func (c *checker) now() time.Duration {
	if c.advance != nil {
		return c.advanced
	}
	return time.Since(c.started)
}

// early is the longest wait that is surely shorter than d, which the store gave.
func (c *checker) early(d time.Duration) time.Duration { return d - max(c.grain, 1) }

// key returns a key that nobody has used before.
func (c *checker) key() string { return rand.Text() }

func (c *checker) policy(limits ...ratelimit.Limit) *ratelimit.Policy {
	c.t.Helper()
	return c.named("contract", limits...)
}

func (c *checker) named(name string, limits ...ratelimit.Limit) *ratelimit.Policy {
	c.t.Helper()
	return c.counting(name, c.algorithm, limits...)
}

func (c *checker) counting(name string, a ratelimit.Algorithm, limits ...ratelimit.Limit) *ratelimit.Policy {
	c.t.Helper()
	p, err := ratelimit.NewPolicy(name, a, limits...)
	c.must(err)
	return p
}

// quota is the most that l admits at once.
func quota(p *ratelimit.Policy, l ratelimit.Limit) int {
	if p.Algorithm() == ratelimit.TokenBucket && l.Burst > 0 {
		return l.Burst
	}
	return l.Requests
}

// take asks the store to consume cost.
func (c *checker) take(p *ratelimit.Policy, key string, cost int) []ratelimit.Result {
	c.t.Helper()
	results := unset(p)
	c.must(c.store.Take(context.Background(), p, key, cost, results))
	c.sane(p, results)
	return results
}

// takes is take for a policy of one limit.
func (c *checker) takes(p *ratelimit.Policy, key string, cost int) bool {
	c.t.Helper()
	return allowed(c.take(p, key, cost))
}

func (c *checker) peek(p *ratelimit.Policy, key string) []ratelimit.Result {
	c.t.Helper()
	results := unset(p)
	c.must(c.store.Peek(context.Background(), p, key, results))
	c.sane(p, results)
	return results
}

func (c *checker) refund(p *ratelimit.Policy, key string, cost int, left []time.Duration) {
	c.t.Helper()
	c.must(c.store.Refund(context.Background(), p, key, cost, left))
}

func (c *checker) reset(p *ratelimit.Policy, key string) {
	c.t.Helper()
	c.must(c.store.Reset(context.Background(), p, key))
}

// unset returns results that no store may leave as they are.
func unset(p *ratelimit.Policy) []ratelimit.Result {
	results := make([]ratelimit.Result, len(p.Limits()))
	for i := range results {
		results[i] = ratelimit.Result{Allowed: true, Remaining: math.MinInt, RetryAfter: -1, ResetAfter: -1}
	}
	return results
}

func allowed(results []ratelimit.Result) bool {
	for _, r := range results {
		if !r.Allowed {
			return false
		}
	}
	return true
}

// sane checks what holds for every result.
func (c *checker) sane(p *ratelimit.Policy, results []ratelimit.Result) {
	c.t.Helper()
	for i, r := range results {
		l := p.Limits()[i]
		switch {
		case r.Limit != l:
			c.fatalf("results[%d].Limit: want the limit of the policy, %v, got %v", i, l, r.Limit)
		case r.Remaining < 0 || r.Remaining > quota(p, l):
			c.fatalf("results[%d].Remaining of %v: want 0 to %d, got %d", i, l, quota(p, l), r.Remaining)
		case r.Allowed && r.RetryAfter != 0:
			c.fatalf("results[%d].RetryAfter of %v: want 0 where it is allowed, got %v", i, l, r.RetryAfter)
		case !r.Allowed && r.RetryAfter <= 0:
			c.fatalf("results[%d].RetryAfter of %v: want more than 0 where it is denied, got %v", i, l, r.RetryAfter)
		case r.ResetAfter < 0:
			c.fatalf("results[%d].ResetAfter of %v: want at least 0, got %v", i, l, r.ResetAfter)
		}
	}
}
