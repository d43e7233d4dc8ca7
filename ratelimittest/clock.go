package ratelimittest

import (
	"sync"
	"time"
)

// A Clock is a clock for tests. It stands still until it is moved. Pass its Now
// method to [github.com/aed328ba/ratelimit.WithClock].
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// NewClock returns a clock that shows the start of a day in 2030.
func NewClock() *Clock {
	return &Clock{now: time.Date(2030, time.May, 1, 0, 0, 0, 0, time.UTC)}
}

// Now returns the time that the clock shows.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance moves the clock on by d, or back if d is negative.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}
