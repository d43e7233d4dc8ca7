package ratelimittest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aed328ba/ratelimit"
)

// rules are the contract, those that only count before those that wait.
var rules = []rule{
	{"of concurrent calls for one key exactly as many are admitted as fit", exactlyWhatFits},
	{"concurrent calls consume from every limit or from none", allOrNothingAtOnce},
	{"a cost is consumed whole", wholeCost},
	{"a denied cost consumes nothing", deniedConsumesNothing},
	{"each limit speaks for itself", eachLimitSpeaks},
	{"names, algorithms and periods have counts of their own", ownCounts},
	{"one name, algorithm and period share a count, also where the number of requests differs", sharedCount},
	{"keys are opaque", opaqueKeys},
	{"Peek says what Take would and consumes nothing", peekConsumesNothing},
	{"Refund gives back, never above the full quota", refundGivesBack},
	{"Refund does not reach across a window", refundStaysInItsWindow},
	{"Reset gives a key its full quota, and no other key", resetOneKey},
	{"a canceled context is reported as its error", canceledContext},
	{"the largest limit is counted exactly", largestLimit},

	{"a period of a millisecond is a period", shortestPeriod},
	{"a client that waits RetryAfter is admitted, and not earlier", retryAfterHolds},
	{"after ResetAfter the quota is full again, and not earlier", resetAfterHolds},
	{"no window admits more than the algorithm promises", promiseHolds},
	{"a late Refund does not reach the next window", lateRefund},
}

func exactlyWhatFits(c *checker) {
	const goroutines, each, limit = 16, 10, 50
	for cost := 1; cost <= 3; cost += 2 {
		p, key := c.policy(ratelimit.PerHour(limit)), c.key()
		var admitted atomic.Int64
		var wg sync.WaitGroup
		for range goroutines {
			wg.Go(func() {
				for range each {
					if c.takes(p, key, cost) {
						admitted.Add(1)
					}
				}
			})
		}
		wg.Wait()
		c.want(fmt.Sprintf("of %d calls that cost %d, under %v, admitted", goroutines*each, cost, p), limit/cost, int(admitted.Load()))
	}
}

func allOrNothingAtOnce(c *checker) {
	p, key := c.policy(ratelimit.PerHour(50), ratelimit.PerDay(30)), c.key()
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 10 {
				if allowed(c.take(p, key, 1)) {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	c.want("admitted under 50/hour and 30/day", 30, int(admitted.Load()))
	r := c.peek(p, key)
	c.want("remaining of 50/hour", 20, r[0].Remaining)
	c.want("remaining of 30/day", 0, r[1].Remaining)
}

func wholeCost(c *checker) {
	p, key := c.policy(ratelimit.PerHour(10)), c.key()
	for _, step := range []struct{ cost, remaining int }{{4, 6}, {1, 5}, {5, 0}} {
		r := c.take(p, key, step.cost)
		if !r[0].Allowed {
			c.fatalf("a cost of %d with %d remaining was denied", step.cost, step.remaining+step.cost)
		}
		c.want("remaining", step.remaining, r[0].Remaining)
	}
	if c.takes(p, key, 1) {
		c.errorf("11 of 10 were admitted")
	}
	if fresh := c.key(); !c.takes(p, fresh, 10) {
		c.errorf("a cost of the whole limit was denied")
	}
}

func deniedConsumesNothing(c *checker) {
	p, key := c.policy(ratelimit.PerHour(5)), c.key()
	c.take(p, key, 3)
	for range 3 {
		r := c.take(p, key, 3)
		if r[0].Allowed {
			c.fatalf("6 of 5 were admitted")
		}
		c.want("remaining after a denied cost", 2, r[0].Remaining)
	}
	if !c.takes(p, key, 2) {
		c.errorf("what remained was denied after a larger cost was")
	}

	p, key = c.policy(ratelimit.PerHour(10), ratelimit.PerDay(3)), c.key()
	c.take(p, key, 3)
	for range 3 {
		r := c.take(p, key, 1)
		c.want("remaining of 10/hour while 3/day denies", 7, r[0].Remaining)
	}
}

func eachLimitSpeaks(c *checker) {
	p, key := c.policy(ratelimit.PerDay(3), ratelimit.PerHour(10), ratelimit.Per(5, 2*time.Hour)), c.key()
	r := c.take(p, key, 2)
	c.want("remaining of 3/day", 1, r[0].Remaining)
	c.want("remaining of 10/hour", 8, r[1].Remaining)
	c.want("remaining of 5/2h", 3, r[2].Remaining)

	r = c.take(p, key, 2)
	if r[0].Allowed || !r[1].Allowed || !r[2].Allowed {
		c.errorf("a cost of 2 with 1, 8 and 3 remaining: want it denied by the first limit alone, got %v, %v and %v", r[0].Allowed, r[1].Allowed, r[2].Allowed)
	}
	c.want("remaining of 5/2h after a denial by another limit", 3, r[2].Remaining)
}

func ownCounts(c *checker) {
	key := c.key()
	algorithms := []ratelimit.Algorithm{ratelimit.FixedWindow, ratelimit.SlidingWindowLog, ratelimit.SlidingWindowCounter, ratelimit.TokenBucket}
	fresh := func(name, key string, a ratelimit.Algorithm, period time.Duration) {
		p := c.counting(name, a, ratelimit.Per(2, period))
		if !c.takes(p, key, 2) {
			c.errorf("%q, %v: another name, algorithm or period had used its quota up", name, p)
		}
		if c.takes(p, key, 1) {
			c.errorf("%q, %v: 3 of 2 were admitted", name, p)
		}
	}
	for _, name := range []string{"a", "b", "ab", "a/b", "a (dry-run)"} {
		for _, algorithm := range algorithms {
			for _, period := range []time.Duration{time.Hour, time.Hour + time.Millisecond, 24 * time.Hour} {
				fresh(name, key, algorithm, period)
			}
		}
	}
	// Wherever the name ends and the key begins.
	fresh("a", "/b"+key, c.algorithm, time.Hour)
	fresh("", "a"+key, c.algorithm, time.Hour)
}

func sharedCount(c *checker) {
	key := c.key()
	c.take(c.policy(ratelimit.PerHour(10)), key, 7)

	lowered := c.policy(ratelimit.PerHour(3), ratelimit.PerDay(100))
	r := c.take(lowered, key, 1)
	if r[0].Allowed {
		c.errorf("7 were used and the limit lowered to 3: want a denial")
	}
	c.want("remaining when 7 are used and the limit is lowered to 3", 0, r[0].Remaining)
	if most := 2 * time.Hour; r[0].RetryAfter > most+c.grain {
		c.errorf("RetryAfter under a lowered limit: want at most %v, got %v", most, r[0].RetryAfter)
	}

	r = c.take(c.policy(ratelimit.PerHour(100)), key, 1)
	if !r[0].Allowed {
		c.errorf("the limit was raised to 100 and 7 are used: want it admitted")
	}
	// A bucket was 7/10 empty, which is 70 of 100; the others have counted 7.
	if r[0].Remaining > 92 || r[0].Remaining < 29 {
		c.errorf("remaining when 8 are used and the limit is raised to 100: got %d", r[0].Remaining)
	}
}

func opaqueKeys(c *checker) {
	p := c.policy(ratelimit.PerHour(1))
	run := c.key()
	keys := []string{
		"", ":", "::", "{", "}", "{}", "{a}", "{b}", "a", "A", "a:", ":a", "a:1", "a/1", "a 1", "a\x001", "a\r\n1", "a*", "a?", "[a]", `a\`, `a"`,
		"a%7D", "a+b", "a%2Bb", "ip:203.0.113.7", "\u00e9", "e\u0301", "\xff\xfe", "\u202e",
	}
	for _, tail := range []string{"x", "y", "\x00"} { // which differ in the last of 128 bytes
		keys = append(keys, strings.Repeat("x", 127-len(run))+tail)
	}
	for _, key := range keys {
		if !c.takes(p, run+key, 1) {
			c.errorf("the key %q shares the count of another", key)
		}
	}
	for _, key := range keys {
		if c.takes(p, run+key, 1) {
			c.errorf("the key %q was forgotten", key)
		}
	}
}

func peekConsumesNothing(c *checker) {
	p, key := c.policy(ratelimit.PerHour(2), ratelimit.PerDay(5)), c.key()
	for range 3 {
		r := c.peek(p, key)
		if !allowed(r) || r[0].Remaining != 2 || r[1].Remaining != 5 || r[0].ResetAfter != 0 || r[1].ResetAfter != 0 {
			c.fatalf("Peek at a key never seen: want the full quota and nothing to wait for, got %+v", r)
		}
	}
	for used := range 2 {
		c.take(p, key, 1)
		for range 2 {
			r := c.peek(p, key)
			c.want("remaining of 2/hour, by Peek", 1-used, r[0].Remaining)
			c.want("remaining of 5/day, by Peek", 4-used, r[1].Remaining)
			if r[0].Allowed != (used == 0) || !r[1].Allowed {
				c.errorf("Peek after %d of 2/hour and 5/day: got Allowed %v and %v", used+1, r[0].Allowed, r[1].Allowed)
			}
			if r[0].ResetAfter <= 0 || r[1].ResetAfter <= 0 {
				c.errorf("Peek at a key in use: want ResetAfter above 0, got %v and %v", r[0].ResetAfter, r[1].ResetAfter)
			}
		}
	}
	denied, peeked := c.take(p, key, 1)[0], c.peek(p, key)[0]
	if d := denied.RetryAfter - peeked.RetryAfter; d < -c.grain || !c.realTime() && d > c.grain {
		c.errorf("RetryAfter: Take says %v, Peek right after it %v", denied.RetryAfter, peeked.RetryAfter)
	}
}

func refundGivesBack(c *checker) {
	p := c.policy(ratelimit.PerHour(5), ratelimit.PerDay(8))
	remain := func(what, key string, hour, day int) {
		r := c.peek(p, key)
		c.want("remaining of 5/hour after "+what, hour, r[0].Remaining)
		c.want("remaining of 8/day after "+what, day, r[1].Remaining)
	}
	key := c.key()
	c.refund(p, key, 3, nil)
	remain("a refund to a key never seen", key, 5, 8)
	c.take(p, key, 5)
	c.refund(p, key, 2, nil)
	remain("5 were taken and 2 given back", key, 2, 5)
	c.refund(p, key, 5, nil)
	remain("more was given back than was taken", key, 5, 8)
	c.take(p, key, 5)
	remain("5 were taken again", key, 0, 3)

	key = c.key()
	r := c.take(p, key, 4)
	since := c.now()
	left := []time.Duration{r[0].ResetAfter, r[1].ResetAfter}
	for i := range left {
		left[i] -= c.now() - since
	}
	c.refund(p, key, 3, left)
	remain("4 were taken and 3 of that decision given back", key, 4, 7)
}

func refundStaysInItsWindow(c *checker) {
	p, key := c.policy(ratelimit.PerHour(5), ratelimit.PerDay(8)), c.key()
	r := c.take(p, key, 4)
	for _, left := range [][]time.Duration{{0, 0}, {-time.Hour, -1}} {
		c.refund(p, key, 4, left)
		c.want("remaining of 5/hour after a refund of a decision that is over", 1, c.peek(p, key)[0].Remaining)
		c.want("remaining of 8/day after a refund of a decision that is over", 4, c.peek(p, key)[1].Remaining)
	}
	if c.algorithm == ratelimit.FixedWindow || c.algorithm == ratelimit.SlidingWindowCounter {
		c.refund(p, key, 4, []time.Duration{r[0].ResetAfter / 2, r[1].ResetAfter / 2})
		c.want("remaining of 5/hour after a refund to an earlier window", 1, c.peek(p, key)[0].Remaining)
	}
	c.refund(p, key, 1, []time.Duration{r[0].ResetAfter, 0})
	after := c.peek(p, key)
	c.want("remaining of 5/hour after a refund to it alone", 2, after[0].Remaining)
	c.want("remaining of 8/day after a refund to another limit", 4, after[1].Remaining)
}

func resetOneKey(c *checker) {
	p := c.policy(ratelimit.PerHour(5), ratelimit.PerDay(8))
	key, other := c.key(), c.key()
	c.reset(p, key) // of a key never seen
	c.take(p, key, 5)
	c.take(p, other, 5)
	c.reset(p, key)
	r := c.peek(p, key)
	if r[0].Remaining != 5 || r[1].Remaining != 8 || r[0].ResetAfter != 0 || r[1].ResetAfter != 0 {
		c.errorf("want the full quota after Reset, got %+v", r)
	}
	if !c.takes(p, key, 5) {
		c.errorf("the full quota was denied after Reset")
	}
	c.want("remaining of another key", 0, c.peek(p, other)[0].Remaining)
}

// canceledContext allows a store to decide all the same, as one in memory may.
func canceledContext(c *checker) {
	p, key := c.policy(ratelimit.PerHour(1)), c.key()
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	expired, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	for _, ctx := range []context.Context{canceled, expired} {
		results := unset(p)
		for call, err := range map[string]error{
			"Take":   c.store.Take(ctx, p, key, 1, results),
			"Peek":   c.store.Peek(ctx, p, key, results),
			"Refund": c.store.Refund(ctx, p, key, 1, nil),
			"Reset":  c.store.Reset(ctx, p, key),
		} {
			if err != nil && !errors.Is(err, ctx.Err()) {
				c.errorf("%s with a context that is done: want its error, %v, or a decision, got %v", call, ctx.Err(), err)
			}
		}
	}
	if !c.takes(p, c.key(), 1) {
		c.errorf("the store does not work after a call was canceled")
	}
}

func largestLimit(c *checker) {
	limit := ratelimit.Per(math.MaxInt32, 366*24*time.Hour)
	if c.algorithm == ratelimit.SlidingWindowLog { // the most it takes
		limit.Requests = 100_000
	}
	p, key := c.policy(limit), c.key()
	started := c.now()
	take := func(cost, remaining int) {
		got := c.take(p, key, cost)[0].Remaining
		refilled := 0
		if elapsed := c.now() - started; elapsed > 0 && c.algorithm == ratelimit.TokenBucket { // one each 15 ms
			refilled = 1 + int(elapsed/(limit.Period/time.Duration(limit.Requests)))
		}
		if got < remaining || got > remaining+refilled {
			c.errorf("remaining of %v after a cost of %d: want %d, got %d", p, cost, remaining, got)
		}
	}
	take(1, limit.Requests-1)
	take(2, limit.Requests-3)
	if c.algorithm == ratelimit.SlidingWindowLog {
		return // it keeps each request
	}
	take(limit.Requests-4, 1)
	r := c.take(p, key, limit.Requests)
	if r[0].Allowed {
		c.errorf("twice the largest limit was admitted")
	}
	if most := 2*limit.Period + c.grain; r[0].RetryAfter > most {
		c.errorf("RetryAfter of the largest limit: want at most %v, got %v", most, r[0].RetryAfter)
	}
}
