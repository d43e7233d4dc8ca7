package ratelimittest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/aed328ba/ratelimit"
)

// ErrFault is what a [FaultyStore] fails with unless it is given another error.
var ErrFault = errors.New("ratelimittest: the store fails, as it was told to")

// A FaultyStore is a [ratelimit.Store] that works as another one does until it
// is told to fail, to hang or to answer slowly: to see what an application does
// while its store is in trouble. It is safe for concurrent use, also while it
// is told something else.
type FaultyStore struct {
	inner ratelimit.Store

	mu      sync.Mutex
	calls   int
	fault   fault
	changed chan struct{} // closed when the fault is another one
}

// A fault is what a FaultyStore was told to do; the zero fault is to work.
type fault struct {
	err   error
	hang  bool
	delay time.Duration
}

// NewFaultyStore returns a store that works as inner does, nil meaning a new
// [ratelimit.MemoryStore].
func NewFaultyStore(inner ratelimit.Store) *FaultyStore {
	if inner == nil {
		inner = ratelimit.NewMemoryStore()
	}
	return &FaultyStore{inner: inner, changed: make(chan struct{})}
}

// Fail makes every call return err, nil meaning [ErrFault]. Nothing is counted.
func (s *FaultyStore) Fail(err error) {
	if err == nil {
		err = ErrFault
	}
	s.set(fault{err: err})
}

// Hang makes every call wait until its context is done, and return the error
// of the context. A call that hangs when the store is told something else does
// that.
func (s *FaultyStore) Hang() { s.set(fault{hang: true}) }

// Delay makes every call wait for d before it works. One whose context is done
// before returns the error of the context, and nothing is counted.
func (s *FaultyStore) Delay(d time.Duration) { s.set(fault{delay: d}) }

// Heal makes the store work again.
func (s *FaultyStore) Heal() { s.set(fault{}) }

// Calls returns how many calls have reached the store, whatever became of them.
func (s *FaultyStore) Calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

func (s *FaultyStore) set(f fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *FaultyStore) current() (fault, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fault, s.changed
}

// suffer counts a call and does what the store was told; nil means to go on.
func (s *FaultyStore) suffer(ctx context.Context) error {
	s.mu.Lock()
	s.calls++
	s.mu.Unlock()
	for {
		f, changed := s.current()
		switch {
		case f.err != nil:
			return f.err
		case f.hang:
			select {
			case <-changed:
			case <-ctx.Done():
				return ctx.Err()
			}
		case f.delay > 0:
			timer := time.NewTimer(f.delay)
			defer timer.Stop()
			select {
			case <-timer.C:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		default:
			return nil
		}
	}
}

// Take implements [ratelimit.Store].
func (s *FaultyStore) Take(ctx context.Context, p *ratelimit.Policy, key string, cost int, results []ratelimit.Result) error {
	if err := s.suffer(ctx); err != nil {
		return err
	}
	return s.inner.Take(ctx, p, key, cost, results)
}

// Peek implements [ratelimit.Store].
func (s *FaultyStore) Peek(ctx context.Context, p *ratelimit.Policy, key string, results []ratelimit.Result) error {
	if err := s.suffer(ctx); err != nil {
		return err
	}
	return s.inner.Peek(ctx, p, key, results)
}

// Refund implements [ratelimit.Store].
func (s *FaultyStore) Refund(ctx context.Context, p *ratelimit.Policy, key string, cost int, left []time.Duration) error {
	if err := s.suffer(ctx); err != nil {
		return err
	}
	return s.inner.Refund(ctx, p, key, cost, left)
}

// Reset implements [ratelimit.Store].
func (s *FaultyStore) Reset(ctx context.Context, p *ratelimit.Policy, key string) error {
	if err := s.suffer(ctx); err != nil {
		return err
	}
	return s.inner.Reset(ctx, p, key)
}

// Claim asks the other store whether a limiter may count under name; see
// [ratelimit.Claims].
func (s *FaultyStore) Claim(name, settings string) error {
	if c, ok := s.inner.(interface {
		Claim(name, settings string) error
	}); ok {
		return c.Claim(name, settings)
	}
	return nil
}
