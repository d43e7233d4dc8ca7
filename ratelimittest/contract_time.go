package ratelimittest

import (
	"time"

	"github.com/aed328ba/ratelimit"
)

// window is the period of the limits that are waited for.
const window = 200 * time.Millisecond

func shortestPeriod(c *checker) {
	for _, period := range []time.Duration{time.Millisecond, 1500 * time.Microsecond} {
		p, key := c.policy(ratelimit.Per(2, period)), c.key()
		if !c.takes(p, key, 2) {
			c.fatalf("the first 2 under %v were denied", p)
		}
		if r := c.take(p, key, 1); !c.realTime() && r[0].Allowed {
			c.errorf("3 of 2 under %v were admitted", p)
		}
		// Rounded up to whole milliseconds, and the counter keeps two windows.
		c.wait(2*2*time.Millisecond + c.grain)
		if !c.takes(p, key, 2) {
			c.errorf("2 under %v were denied when everything was over", p)
		}
	}
}

func retryAfterHolds(c *checker) {
	p := c.policy(ratelimit.Per(5, window).WithBurst(3))
	for cost := 1; cost <= 2; cost++ {
		key := c.key()
		c.take(p, key, 1)
		c.wait(window / 3)
		since := c.now() // before the call that is denied
		r := c.take(p, key, cost)
		for tries := 0; r[0].Allowed; tries++ {
			if tries == 1000 {
				c.fatalf("1000 times a cost of %d was admitted under %v", cost, p)
			}
			since = c.now()
			r = c.take(p, key, cost)
		}
		promised := r[0].RetryAfter
		if most := 2*window + c.grain; promised > most {
			c.errorf("RetryAfter of a cost of %d under %v: want at most %v, got %v", cost, p, most, promised)
		}
		c.wait(c.soonBefore(promised))
		r = c.take(p, key, cost)
		if waited := c.now() - since; r[0].Allowed && waited <= c.early(promised) {
			c.errorf("a cost of %d under %v was admitted after %v, and RetryAfter was %v", cost, p, waited, promised)
		}
		if r[0].Allowed {
			continue
		}
		c.wait(r[0].RetryAfter + c.grain)
		if r = c.take(p, key, cost); !r[0].Allowed {
			c.errorf("a cost of %d under %v was denied after its RetryAfter, with another one of %v", cost, p, r[0].RetryAfter)
		}
	}
}

// soonBefore is how long to wait so that d is not yet over: on real time, where
// a wait takes longer than it should, half of it.
func (c *checker) soonBefore(d time.Duration) time.Duration {
	if c.realTime() {
		return d / 2
	}
	return c.early(d)
}

func resetAfterHolds(c *checker) {
	p, key := c.policy(ratelimit.Per(5, window).WithBurst(3)), c.key()
	full := quota(p, p.Limits()[0])
	c.take(p, key, 1)
	c.wait(window / 3)
	since := c.now()
	r := c.take(p, key, 1)
	promised := r[0].ResetAfter
	if promised <= 0 || promised > 2*window+c.grain {
		c.errorf("ResetAfter under %v: want more than 0, at most %v, got %v", p, 2*window, promised)
	}
	c.wait(c.soonBefore(promised))
	r = c.peek(p, key)
	if waited := c.now() - since; waited <= c.early(promised) && r[0].Remaining == full && r[0].ResetAfter == 0 {
		c.errorf("the quota of %v was full again after %v, and ResetAfter was %v", p, waited, promised)
	}
	c.wait(promised - c.soonBefore(promised) + c.grain)
	r = c.peek(p, key)
	if r[0].Remaining != full || r[0].ResetAfter != 0 {
		c.errorf("after ResetAfter under %v: want %d remaining and nothing to wait for, got %d and %v", p, full, r[0].Remaining, r[0].ResetAfter)
	}
	if !c.takes(p, key, full) {
		c.errorf("the full quota of %v was denied after ResetAfter", p)
	}
}

// promiseHolds lets an adversary try who knows where windows end: one request
// opens a window, the rest come at its end, and then all that pass.
func promiseHolds(c *checker) {
	const requests, burst = 5, 2
	most := map[ratelimit.Algorithm]int{
		ratelimit.FixedWindow:          2*requests - 1,
		ratelimit.SlidingWindowLog:     requests,
		ratelimit.SlidingWindowCounter: 2*requests - 1,
		ratelimit.TokenBucket:          requests + burst - 1,
	}[c.algorithm]
	p, key := c.policy(ratelimit.Per(requests, window).WithBurst(burst)), c.key()
	type call struct{ from, to time.Duration }
	var admitted []call
	ask := func() bool {
		from := c.now()
		ok := c.takes(p, key, 1)
		if ok {
			admitted = append(admitted, call{from, c.now()})
		}
		return ok
	}
	const steps = 13
	ask()
	c.wait(window / steps * (steps - 1))
	for range 2 * steps {
		for ask() && len(admitted) < 1000 {
		}
		c.wait(window / steps)
	}
	for i := most; i < len(admitted); i++ {
		// At least from when the first was asked to when the last was answered.
		if took := admitted[i].to - admitted[i-most].from; took < window-c.grain {
			c.fatalf("%d were admitted in %v under %v: want at most %d in any %v", most+1, took, p, most, window)
		}
	}
	if len(admitted) < 2*requests {
		c.errorf("%d were admitted in three windows under %v", len(admitted), p)
	}
}

func lateRefund(c *checker) {
	p, key := c.policy(ratelimit.Per(5, window)), c.key()
	since := c.now()
	left := c.take(p, key, 3)[0].ResetAfter
	c.wait(left + c.grain)
	before := c.now()
	c.take(p, key, 4)
	c.refund(p, key, 3, []time.Duration{left - (before - since)})
	r := c.peek(p, key)
	// On real time, a request may have come back by itself by now.
	if c.now()-before < window/5 && r[0].Remaining != 1 {
		c.errorf("a refund of 3 from an earlier window left %d of 5 after 4 were taken: want 1", r[0].Remaining)
	}
}
