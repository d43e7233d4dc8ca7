package ratelimittest

import (
	"context"
	"slices"
	"sync"

	"github.com/aed328ba/ratelimit"
)

// A Recorder keeps the events of limiters: pass its Observe method to
// [ratelimit.WithObserver]. It is safe for concurrent use.
type Recorder struct {
	mu     sync.Mutex
	events []ratelimit.Event
}

// NewRecorder returns a recorder that has seen nothing.
func NewRecorder() *Recorder { return new(Recorder) }

// Observe keeps e.
func (r *Recorder) Observe(_ context.Context, e ratelimit.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

// Events returns what was observed, the oldest first.
func (r *Recorder) Events() []ratelimit.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// Last returns the newest event; false where there is none.
func (r *Recorder) Last() (ratelimit.Event, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.events) == 0 {
		return ratelimit.Event{}, false
	}
	return r.events[len(r.events)-1], true
}

// Allowed returns how many events were of something that may pass.
func (r *Recorder) Allowed() int {
	return r.count(func(e ratelimit.Event) bool { return e.Result.Allowed })
}

// Denied returns how many events were of something that may not pass.
func (r *Recorder) Denied() int {
	return r.count(func(e ratelimit.Event) bool { return !e.Result.Allowed })
}

// Failed returns how many events carry an error; each of them is also one that
// was allowed or denied.
func (r *Recorder) Failed() int {
	return r.count(func(e ratelimit.Event) bool { return e.Err != nil })
}

// Reset forgets everything.
func (r *Recorder) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = nil
}

func (r *Recorder) count(is func(ratelimit.Event) bool) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		if is(e) {
			n++
		}
	}
	return n
}
