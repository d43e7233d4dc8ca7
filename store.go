package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"
)

// A Store keeps the counts. [NewMemoryStore] serves one instance of an
// application; [NewRedisStore] as many as share a Redis. A store of your own
// most simply wraps one of the two; run ratelimittest.TestStore on it.
//
// What every store promises:
//
//   - One call is one atomic step: of any number of concurrent calls for one
//     key, exactly as many are admitted as fit.
//   - The limits of a policy hold together: a cost is consumed from each of
//     them or from none. A denied cost consumes nothing.
//   - Keys of different names, algorithms or periods never share a count; keys
//     of one name, algorithm and period do, also where the number of requests
//     differs. Bursts above it may each have a count of their own.
//   - The store's own clock decides, never the caller's.
//   - An error means that nothing is known: the caller decides what happens
//     to the request. A canceled context is reported as its error.
//
// The limiter checks what it passes on: the policy comes from [NewPolicy], key
// is at most 128 bytes, cost is at least 1 and fits each limit, and results
// and left have an element for each of the policy's limits.
type Store interface {
	// Take decides on cost for key and, where it fits every limit, consumes
	// it. It sets results[i] to what the i-th limit says: Allowed, whether it
	// alone would admit the cost; Remaining and ResetAfter as they are after
	// the decision; RetryAfter, where it is not Allowed.
	Take(ctx context.Context, p *Policy, key string, cost int, results []Result) error

	// Peek sets results as Take would for a cost of 1, but consumes nothing.
	// Remaining and ResetAfter are as they are now.
	Peek(ctx context.Context, p *Policy, key string, results []Result) error

	// Refund gives cost back to key, never above its full quota and never
	// across a window. left[i] is what is left of the ResetAfter of the
	// decision that consumed the cost, by the i-th limit: where it is 0 or
	// less, the cost has come back by itself; where the current window ends
	// later than that, it is another window. A nil left means no decision in
	// particular: the cost is given back to the window that is open now.
	Refund(ctx context.Context, p *Policy, key string, cost int, left []time.Duration) error

	// Reset gives key its full quota again.
	Reset(ctx context.Context, p *Policy, key string) error
}

// A Policy is what a [Store] enforces: one or more limits that must all hold,
// counted by one algorithm under one name. It does not change once made.
type Policy struct {
	name      string
	algorithm Algorithm
	limits    []Limit
	memory    []budget // in nanoseconds
	redis     []budget // in microseconds, or what Lua can count in
	maxCost   int      // the largest cost that can ever be admitted
	dryRun    bool     // decided and observed, not enforced; its name says so too

	// For headers; see the styles of the same names.
	draft6, draft10 string
	draft10Names    []string

	// For the names of keys in Redis: ...{redisName:hash}:redisTails[i]
	redisName  string
	redisTails []string
}

// maxLimits is how many limits one policy takes: one for each unit of time
// that people write, and some to spare.
const maxLimits = 8

// maxLogRequests bounds what a SlidingWindowLog keeps for one key.
const maxLogRequests = 100_000

// NewPolicy returns a policy of at least one and at most 8 limits of different
// periods. A [Limiter] makes its own; this is for those who test or call a
// [Store] directly. The error joins every fault found.
func NewPolicy(name string, algorithm Algorithm, limits ...Limit) (*Policy, error) {
	p, faults := newPolicy(name, algorithm, limits)
	for i, fault := range faults {
		faults[i] = fmt.Errorf("ratelimit: %w", fault)
	}
	return p, errors.Join(faults...)
}

// newPolicy returns a policy, or every reason why it cannot be enforced.
func newPolicy(name string, algorithm Algorithm, limits []Limit) (*Policy, []error) {
	p := &Policy{name: name, algorithm: algorithm, limits: append([]Limit(nil), limits...), maxCost: math.MaxInt}
	if faults := p.faults(); len(faults) > 0 {
		return nil, faults
	}
	for _, l := range limits {
		p.memory = append(p.memory, newBudget(name, algorithm, l, time.Nanosecond))
		p.redis = append(p.redis, newBudget(name, algorithm, l, redisTick(algorithm, l)))
	}
	for i := range p.memory {
		p.maxCost = min(p.maxCost, int(p.memory[i].quota))
	}
	p.redisName, p.redisTails = redisNames(p)
	p.draft6 = draft6Policy(p)
	p.draft10, p.draft10Names = draft10Policy(p)
	return p, nil
}

// faults returns every reason why p cannot be enforced.
func (p *Policy) faults() (faults []error) {
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf(format, args...))
	}
	if err := p.algorithm.validate(); err != nil {
		fault("%w", err)
	}
	if len(p.limits) == 0 {
		fault("no limit given; add ratelimit.WithLimit(ratelimit.PerMinute(100)) or the like")
	}
	if len(p.limits) > maxLimits {
		fault("%d limits given, at most %d can be enforced together", len(p.limits), maxLimits)
	}
	seen := map[time.Duration]Limit{}
	for _, l := range p.limits {
		if err := l.validate(); err != nil {
			fault("limit %q: %w", l, err)
			continue
		}
		if p.algorithm == SlidingWindowLog && l.Requests > maxLogRequests {
			fault("limit %q: a sliding-window-log keeps a record of every request, at most %d; use SlidingWindowCounter or TokenBucket", l, maxLogRequests)
		}
		period := wholeMilliseconds(l.Period)
		if other, dup := seen[period]; dup {
			fault("limits %q and %q have the same period, so that one of them decides alone; keep the stricter", other, l)
		}
		seen[period] = l
	}
	return faults
}

// Name returns the name under which the policy counts.
func (p *Policy) Name() string { return p.name }

// Algorithm returns the algorithm that counts.
func (p *Policy) Algorithm() Algorithm { return p.algorithm }

// Limits returns the limits, which the caller must not change.
func (p *Policy) Limits() []Limit { return p.limits }

// String returns the limits and the algorithm: "10/second, 1000/hour using token-bucket".
func (p *Policy) String() string {
	return limitsString(p.limits) + " using " + p.algorithm.String()
}

func limitsString(limits []Limit) string {
	texts := make([]string, len(limits))
	for i, l := range limits {
		texts[i] = l.String()
	}
	return strings.Join(texts, ", ")
}

// Claims is embedded in a [Store] to see that no two limiters share a budget
// by accident. The zero value is ready to use. A store without it takes any
// limiter.
type Claims struct {
	mu       sync.Mutex
	settings map[string]string
	standIns map[string]*MemoryStore
}

// Claim notes that a limiter counts under name with the given settings, and
// returns an error where another one does with other settings. A limiter
// without a name of its own has no settings to compare (""): nobody can have
// meant it to share.
func (c *Claims) Claim(name, settings string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	other, taken := c.settings[name]
	switch {
	case taken && settings == "":
		return errors.New("ratelimit: WithStore: the store already serves a limiter without a name, and two would share their counts; give each a name with ratelimit.WithName")
	case taken && other != settings:
		return fmt.Errorf("ratelimit: WithName: %q is taken on this store by a limiter with other settings (%s, here %s); use another name", name, other, settings)
	}
	if c.settings == nil {
		c.settings = map[string]string{}
	}
	c.settings[name] = settings
	return nil
}

// standIn returns what stands in for the store while it fails: of limiters that
// share a budget the first one's, so that they share it then too.
func (c *Claims) standIn(name string, own *MemoryStore) *MemoryStore {
	c.mu.Lock()
	defer c.mu.Unlock()
	if first := c.standIns[name]; first != nil {
		return first
	}
	if c.standIns == nil {
		c.standIns = map[string]*MemoryStore{}
	}
	c.standIns[name] = own
	return own
}
