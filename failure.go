package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// A FailurePolicy is what happens to requests while the store cannot decide.
// Whatever it is, each call of the store ends at a deadline ([WithTimeout]);
// after several failures in a row the store is not asked at all, and tried in
// the background of later requests until it answers again. Headers that would
// have to be made up are left out. Each change is logged once, and [Event.Err]
// tells an observer of every decision concerned.
type FailurePolicy uint8

const (
	// FailLocal enforces the same limits in this process alone, the default:
	// no client is unlimited, but with several instances each admits as much
	// as all of them did together, and the counts so far are not known.
	FailLocal FailurePolicy = iota

	// FailOpen lets every request pass.
	FailOpen

	// FailClosed answers 503 Service Unavailable with Retry-After, never 429:
	// it is not the client's fault. Limiter.Allow returns an error that is
	// [ErrStoreUnavailable].
	FailClosed

	failurePolicyCount
)

// String returns the name of the policy.
func (f FailurePolicy) String() string {
	if f < failurePolicyCount {
		return [failurePolicyCount]string{"FailLocal", "FailOpen", "FailClosed"}[f]
	}
	return fmt.Sprintf("FailurePolicy(%d)", uint8(f))
}

// ErrStoreUnavailable says that the store could not decide. It wraps what the
// store said last.
var ErrStoreUnavailable = errors.New("ratelimit: the store is unavailable")

const (
	defaultTimeout = 100 * time.Millisecond

	// breakAfter failures in a row open the breaker, and from then on the store
	// is tried once in each probeEvery.
	breakAfter = 5
	probeEvery = 500 * time.Millisecond
)

// A guard stands before a store that can fail: it sets the deadline, and keeps
// a store that does not answer from being asked by every request.
type guard struct {
	take    func(ctx context.Context, p *Policy, key string, cost int, results []Result) error
	timeout time.Duration
	now     func() time.Time
	changed func(up bool, cause error) // called once at each change of state

	failures atomic.Int32          // in a row
	broken   atomic.Pointer[error] // not nil: open, because of this
	probeAt  atomic.Int64          // when open: the time of the next probe, Unix ns
}

// call asks the store, if it is asked at all. An error is that of the caller's
// own context or an ErrStoreUnavailable.
func (g *guard) call(ctx context.Context, ask func(context.Context) error) error {
	if cause := g.broken.Load(); cause != nil {
		return fmt.Errorf("%w, and was not asked: %w", ErrStoreUnavailable, *cause)
	}
	deadline, hasDeadline := ctx.Deadline()
	hurried := hasDeadline && time.Until(deadline) < g.timeout/2
	bounded, cancel := context.WithTimeout(ctx, g.timeout)
	q := &question{Context: bounded}
	err := ask(q)
	cancel()
	switch {
	case err == nil:
		if !q.fromMemory && g.failures.Load() != 0 {
			g.failures.Store(0)
		}
		return nil
	case gone(ctx):
		return ctx.Err() // nobody's failure
	case hurried && ctx.Err() != nil: // the store had no time, which a client may have chosen
	case !aboutOneKey(err) && g.failures.Add(1) >= breakAfter:
		g.open(err)
	}
	return fmt.Errorf("%w: %w", ErrStoreUnavailable, err)
}

// gone reports whether nobody waits for an answer any more. A deadline that has
// passed is another matter: the client is there, and the limits still hold.
func gone(ctx context.Context) bool { return errors.Is(ctx.Err(), context.Canceled) }

// A question is the context of one call of a store. A store that answers it from
// memory says so: it tells nothing of the server behind.
type question struct {
	context.Context
	fromMemory bool
}

type questionKey struct{}

func (q *question) Value(key any) any {
	if key == (questionKey{}) {
		return q
	}
	return q.Context.Value(key)
}

func answeredFromMemory(ctx context.Context) {
	if q, ok := ctx.Value(questionKey{}).(*question); ok {
		q.fromMemory = true
	}
}

func (g *guard) open(cause error) {
	g.probeAt.Store(g.now().Add(probeEvery).UnixNano())
	if g.broken.CompareAndSwap(nil, &cause) {
		g.changed(false, cause)
	}
}

// probe tries a broken store in the background, if it is time to. It makes a
// decision of its own, because a store that can be read may not take a write.
func (g *guard) probe(p *Policy) {
	at, now, pause := g.probeAt.Load(), g.now().UnixNano(), int64(probeEvery+g.timeout)
	// A wait of more than the pause is of a clock that was set back meanwhile.
	if wait := at - now; g.broken.Load() == nil || wait > 0 && wait <= pause || !g.probeAt.CompareAndSwap(at, now+pause) {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), g.timeout)
		defer cancel()
		err := g.take(ctx, p, probeKey, 1, make([]Result, len(p.limits)))
		if err != nil && !aboutOneKey(err) {
			g.broken.Store(&err)
			return
		}
		g.failures.Store(0)
		if g.broken.Swap(nil) != nil {
			g.changed(true, nil)
		}
	}()
}

// probeKey is no client's: their keys have a kind, or are the application's.
const probeKey = "\x00probe"

// An outcome is what became of a request.
type outcome struct {
	Result

	// err is why the store did not decide.
	err error

	// degraded is whether the failure policy has decided instead.
	degraded bool

	// by is the store that counted the request, nil for none.
	by Store
}

// decide takes cost from key under p, and sets out to what became of it. It sets
// each, if not nil, to what the limits say, where they were asked.
func (l *Limiter) decide(ctx context.Context, p *Policy, key string, cost int, each *[maxLimits]Result, out *outcome) {
	switch {
	case cost < 1:
		out.err = fmt.Errorf("%w: %d; a request costs at least 1", ErrInvalidCost, cost)
		return
	case cost > p.maxCost:
		out.Result, out.err = p.tooMuch(cost)
		return
	}
	if gone(ctx) {
		out.err = ctx.Err()
		return
	}
	if l.guard == nil && len(p.limits) == 1 {
		l.memory.takeOne(p, key, int64(cost), &out.Result)
		out.by = l.memory
		if each != nil {
			each[0] = out.Result
		}
		return
	}
	if each == nil { // what is passed through an interface escapes to the heap
		each = resultsPool.Get().(*[maxLimits]Result)
		defer resultsPool.Put(each)
	}
	results := each[:len(p.limits)]
	if l.guard == nil {
		l.memory.takeAll(p, key, int64(cost), results)
		out.Result, out.by = combine(results), l.memory
		return
	}
	*out = l.decideGuarded(ctx, p, key, cost, results)
}

// decideGuarded decides by a store that can fail.
func (l *Limiter) decideGuarded(ctx context.Context, p *Policy, key string, cost int, results []Result) outcome {
	if l.redis != nil {
		if l.redis.knownDenied(p, key, cost, results) { // which needs no deadline
			return outcome{Result: combine(results), by: l.store}
		}
		if advice := l.redis.advise(); advice != "" {
			l.env.warner.log().Warn("ratelimit: " + advice)
		}
	}
	err := l.guard.call(ctx, func(ctx context.Context) error { return l.guard.take(ctx, p, key, cost, results) })
	switch {
	case err == nil:
		return outcome{Result: combine(results), by: l.store}
	case gone(ctx):
		return outcome{err: err}
	}
	l.guard.probe(p)
	switch l.failure {
	case FailOpen:
		return outcome{Result: Result{Allowed: true}, err: err, degraded: true}
	case FailClosed:
		return outcome{err: err}
	default: // FailLocal
		_ = l.memory.Take(ctx, p, key, cost, results)
		return outcome{Result: combine(results), err: err, degraded: true, by: l.memory}
	}
}

// storeChanged logs that the store has failed, or is back.
func (l *Limiter) storeChanged(up bool, cause error) {
	log := l.env.warner.log()
	if up {
		log.Info("ratelimit: the store answers again", "limiter", l.name)
		return
	}
	meanwhile := map[FailurePolicy]string{
		FailLocal:  "limits are enforced in this process alone",
		FailOpen:   "every request passes",
		FailClosed: "every request is answered with 503",
	}[l.failure]
	log.Error("ratelimit: the store does not answer; until it does, "+meanwhile,
		"limiter", l.name, "policy", l.failure.String(), "error", cause.Error())
}
