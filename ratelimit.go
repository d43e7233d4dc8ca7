// Package ratelimit stops clients from calling a Gin application too often.
//
//	router.Use(ratelimit.New(ratelimit.WithLimit(ratelimit.PerMinute(100))))
//
// That counts by client IP, in memory, and answers 429 with Retry-After to who
// comes too often. Options choose other limits, keys, algorithms, headers and
// stores; see [New].
//
// Routes may have limits of their own, written beside them; see [WithRoutes],
// [Limiter.Annotate] and [Limiter.Register].
//
// The way of a request: its route has a rule or the default holds, its key says
// who is calling, one atomic step in a [Store] decides, the headers tell the
// client, and then the next handler runs or 429 is the answer.
package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"
)

// Errors of [Limiter.AllowN] and its kin, to be found with [errors.Is].
var (
	// ErrInvalidCost says that a cost was below 1.
	ErrInvalidCost = errors.New("ratelimit: invalid cost")

	// ErrCostExceedsLimit says that a cost is more than a limit can ever
	// admit, so that waiting does not help.
	ErrCostExceedsLimit = errors.New("ratelimit: cost exceeds the limit")
)

// A Result is what a limiter decided and where the client stands after it. Of
// several limits it is that of the one with least remaining, and RetryAfter is
// the longest wait among those that were exceeded.
type Result struct {
	// Allowed is whether the request may pass.
	Allowed bool

	// Limit is the limit that the numbers are about.
	Limit Limit

	// Remaining is how many more requests would be admitted now, at least 0.
	Remaining int

	// RetryAfter is how long a denied client has to wait: a request of the
	// same cost is admitted then, unless others of its key came before it, and
	// not earlier. It is 0 where the request is allowed. It is exact to the
	// unit of the store's clock.
	RetryAfter time.Duration

	// ResetAfter is how long until the client has its full quota again if it
	// asks for nothing more; 0 where it has.
	ResetAfter time.Duration
}

// New returns a middleware that limits requests.
//
// By default it counts by client IP ([WithKeyFunc]), in memory ([WithStore]),
// in fixed windows ([WithAlgorithm]), tells clients where they stand in
// X-RateLimit headers ([WithHeaders]), and answers 429 with a body of type
// application/problem+json ([WithDeniedHandler]). CORS preflights pass
// uncounted unless their route has a rule for OPTIONS. Only the limit has no
// default ([WithLimit]).
//
// Several of these middlewares in one chain add up: a request passes if each
// of them lets it, and the headers tell of the strictest.
//
// New panics on options that cannot be enforced, as Gin does on a route, with
// the text that [NewLimiter] returns as an error.
func New(opts ...Option) gin.HandlerFunc {
	l, err := NewLimiter(opts...)
	if err != nil {
		panic(err)
	}
	return l.Middleware()
}

// A Limiter limits requests, in a Gin application and outside of one. It is
// safe for concurrent use, and there is nothing to close.
type Limiter struct {
	*config
	base   *rule // WithLimit, for what has no rule of its own
	env    *keyEnv
	memory *MemoryStore // the store, or what stands in for it under FailLocal; else nil

	// eachWanted is whether a request is asked what each of its limits says,
	// and not only the strictest.
	eachWanted bool
	guard      *guard      // before a store that can fail; nil where memory is the store
	redis      *RedisStore // the store, if it is one

	edit   sync.Mutex // of who changes routes
	routes atomic.Pointer[routeTable]

	mu       sync.RWMutex
	policies map[[maxLimits]Limit]*Policy // of WithLimitFunc
}

// NewLimiter returns a limiter with the options of [New], or an error that
// joins every fault found in them, each with its mend.
func NewLimiter(opts ...Option) (*Limiter, error) {
	c := newConfig(opts)
	settings := ""
	if c.name != "" {
		settings = fmt.Sprintf("%s using %s", limitsString(c.limits), c.algorithm)
		if c.limitFunc != nil {
			settings += " by function"
		}
	}
	if c.name == "" {
		c.name = defaultName
	}
	policy, err := NewPolicy(c.policyName(), c.algorithm, c.limits...)
	if err != nil {
		c.faults = append(c.faults, err)
	}
	rows, err := c.rows(c.routes)
	if err != nil {
		c.faults = append(c.faults, err)
	}
	routes, err := newRouteTable(rows)
	if err != nil {
		c.faults = append(c.faults, err)
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	if claims, ok := c.store.(interface {
		Claim(name, settings string) error
	}); ok {
		if err := claims.Claim(policy.name, settings); err != nil {
			return nil, err
		}
	}
	policy.dryRun = c.dryRun
	l := &Limiter{
		config:   c,
		base:     &rule{policy: policy, key: c.key, source: sourceDefault},
		env:      &keyEnv{ipv6Prefix: c.ipv6Prefix, warner: &warner{logger: c.logger}},
		policies: map[[maxLimits]Limit]*Policy{},

		eachWanted: c.refund != nil || slices.Contains(c.styles, HeadersDraft10),
	}
	l.routes.Store(routes)
	if memory, ok := c.store.(*MemoryStore); ok {
		l.memory = memory // which cannot fail
		return l, nil
	}
	l.guard = &guard{take: c.store.Take, timeout: c.timeout, now: l.now, changed: l.storeChanged}
	if l.redis, _ = c.store.(*RedisStore); l.redis != nil {
		l.guard.take = l.redis.take // past its cache, which is asked before
	}
	if c.failure == FailLocal {
		l.memory = c.newMemoryStore()
		if claims, ok := c.store.(interface {
			standIn(name string, own *MemoryStore) *MemoryStore
		}); ok {
			l.memory = claims.standIn(policy.name, l.memory)
		}
	}
	return l, nil
}

// Middleware returns the limiter as a Gin handler. In one chain it decides
// once for each request, however often it stands there.
func (l *Limiter) Middleware() gin.HandlerFunc { return l.handle }

func (l *Limiter) handle(c *gin.Context) {
	if isPreflight(c.Request) && !l.hasRuleForOptions(c) || l.skip != nil && l.skip(c) {
		return
	}
	v := visitOf(c)
	if !v.enter(l) {
		return
	}
	rule := l.ruleOf(c)
	if rule.off {
		return
	}
	cost := l.costOf(c, rule)
	if cost == 0 {
		return
	}
	policy, key := l.policyOf(c, rule), v.keep(l.appendKey(v.room(), c, rule))
	ctx := c.Request.Context()

	var pooled *[maxLimits]Result
	var each []Result
	if l.eachWanted {
		pooled = resultsPool.Get().(*[maxLimits]Result)
		defer resultsPool.Put(pooled)
		each = pooled[:len(policy.limits)]
	}
	var out outcome
	l.decide(ctx, policy, key, cost, pooled, &out)
	if l.observer != nil {
		l.observe(ctx, c, policy, key, cost, out)
	}

	switch {
	case policy.dryRun:
	case errors.Is(out.err, ErrCostExceedsLimit):
		l.deny(c, out.Result, false)
	case gone(ctx) && out.err != nil:
		// Nobody is there to read an answer: neither run the request nor
		// count it as anybody's failure.
		c.AbortWithStatus(statusClientClosedRequest)
	case out.err != nil && !out.degraded:
		unavailable(c)
	default:
		if !out.degraded { // else the numbers are not those of the limit
			l.tell(c, v, policy, each, out.Result)
		}
		if !out.Allowed {
			l.deny(c, out.Result, true)
		}
	}
	if l.refund != nil && out.Allowed && out.by != nil {
		l.runAndRefund(c, out.by, policy, key, cost, each)
	}
}

// statusClientClosedRequest is what access logs show for a client that hung
// up, by the convention of nginx. It never reaches a client.
const statusClientClosedRequest = 499

// isPreflight reports whether r is a CORS preflight (Fetch standard, 3.3.2). It
// carries no credentials, and to a script a 429 to it is a network error
// without status or headers.
func isPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions &&
		r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != ""
}

// hasRuleForOptions reports whether the route of c was given a rule under the
// method OPTIONS. Who wrote that means its handler, which a client could else
// run without limit by sending the headers of a preflight.
func (l *Limiter) hasRuleForOptions(c *gin.Context) bool {
	return l.routes.Load().exact[route{http.MethodOptions, c.FullPath()}] != nil
}

// ruleOf returns the rule of this request's route, else the default. What
// matches no route is one with all that does not, whatever its method and path.
func (l *Limiter) ruleOf(c *gin.Context) *rule {
	if pattern := c.FullPath(); pattern != "" {
		if r := l.routes.Load().find(c.Request.Method, pattern); r != nil {
			return r
		}
	}
	return l.base
}

// Key returns the key that this request counts under, in plain text: for logs
// of your own and for [Limiter.Reset]. It is that of the route's rule where
// there is one. A key of more than 128 bytes is hashed.
func (l *Limiter) Key(c *gin.Context) string {
	return string(l.appendKey(nil, c, l.ruleOf(c)))
}

func (l *Limiter) appendKey(dst []byte, c *gin.Context, r *rule) []byte {
	key, ok := r.key.append(dst, c, l.env)
	if !ok {
		key = l.env.appendAnonymous(dst, c)
	}
	if len(key) > maxKeyLen {
		key = append(key[:0], shortKey(string(key))...)
	}
	return key
}

func (l *Limiter) costOf(c *gin.Context, r *rule) int {
	if r.cost > 0 {
		return r.cost
	}
	if l.cost == nil {
		return 1
	}
	cost := l.cost(c)
	if cost < 0 {
		l.env.warner.once(warnNegativeCost, fmt.Sprintf("the function of WithCost returned %d; the request is counted as 1", cost))
		return 1
	}
	return cost
}

// policyOf returns what is enforced on this request.
func (l *Limiter) policyOf(c *gin.Context, r *rule) *Policy {
	if l.limitFunc == nil || r != l.base {
		return r.policy
	}
	limits := l.limitFunc(c)
	if len(limits) == 0 {
		return r.policy
	}
	var id [maxLimits]Limit
	if copy(id[:], limits) == len(limits) {
		l.mu.RLock()
		p := l.policies[id]
		l.mu.RUnlock()
		if p != nil {
			return p
		}
	}
	p, err := NewPolicy(r.policy.name, l.algorithm, limits...)
	if err != nil {
		l.env.warner.once(warnLimitFunc, fmt.Sprintf("the function of WithLimitFunc returned %v, which cannot be enforced; the limits of WithLimit are: %v", limits, err))
		return r.policy
	}
	p.dryRun = l.dryRun
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.policies) >= maxPolicies {
		clear(l.policies)
	}
	l.policies[id] = p
	return p
}

// maxPolicies bounds what is kept of the results of WithLimitFunc.
const maxPolicies = 4096

// resultsPool saves an allocation per decision: what is passed through an
// interface escapes to the heap.
var resultsPool = sync.Pool{New: func() any { return new([maxLimits]Result) }}

// tooMuch answers a cost beyond maxCost.
func (p *Policy) tooMuch(cost int) (Result, error) {
	i := slices.IndexFunc(p.memory, func(b budget) bool { return int64(cost) > b.quota })
	limit := p.memory[i].limit
	return Result{Limit: limit}, fmt.Errorf("%w: %d is more than %s ever admits at once", ErrCostExceedsLimit, cost, limit)
}

// combine returns the result of a decision from those of its limits.
func combine(each []Result) Result {
	r := each[0]
	for _, other := range each[1:] {
		r = stricter(r, other)
	}
	return r
}

func stricter(a, b Result) Result {
	r := a
	if b.Remaining < a.Remaining || b.Remaining == a.Remaining && b.ResetAfter > a.ResetAfter {
		r = b
	}
	r.Allowed = a.Allowed && b.Allowed
	r.RetryAfter = max(a.RetryAfter, b.RetryAfter)
	return r
}

func (l *Limiter) observe(ctx context.Context, c *gin.Context, p *Policy, key string, cost int, out outcome) {
	e := Event{Limiter: l.name, Policy: p.name, Cost: cost, Result: out.Result, DryRun: p.dryRun, Err: out.err, key: &key}
	if c != nil {
		e.Route = c.Request.Method + " " + c.FullPath()
	}
	l.observer(ctx, e)
}

// runAndRefund runs the rest of the chain and gives the cost back if the user
// says so, a panic of a handler included.
func (l *Limiter) runAndRefund(c *gin.Context, by Store, p *Policy, key string, cost int, each []Result) {
	decided := l.now()
	left := make([]time.Duration, len(each))
	for i := range left {
		left[i] = each[i].ResetAfter
	}
	returned := false
	defer func() {
		if !returned && !c.Writer.Written() {
			c.Status(http.StatusInternalServerError) // as gin.Recovery will, after this
		}
		if !l.refund(c) {
			return
		}
		elapsed := l.now().Sub(decided)
		for i := range left {
			left[i] -= elapsed
		}
		ctx := context.WithoutCancel(c.Request.Context()) // the client may have hung up by now
		if err := l.giveBack(ctx, by, p, key, cost, left); err != nil && l.observer != nil {
			l.observe(ctx, c, p, key, cost, outcome{err: fmt.Errorf("ratelimit: refund: %w", err)})
		}
	}()
	c.Next()
	returned = true
}

func (l *Limiter) now() time.Time {
	if l.clock != nil {
		return l.clock()
	}
	return time.Now()
}

// unavailable answers 503 while the store cannot decide. It is not the
// client's fault, so it is never 429.
func unavailable(c *gin.Context) {
	setRetryAfter(refuse(c, http.StatusServiceUnavailable), time.Second)
	writeProblem(c, []byte("The service cannot check its rate limits at the moment. Try again soon."))
}

// Allow decides on one request of key, outside of Gin or beside it: for RPCs,
// queues, websockets. See [Limiter.AllowN].
func (l *Limiter) Allow(ctx context.Context, key string) (Result, error) {
	return l.AllowN(ctx, key, 1)
}

// AllowN decides on a request of key that costs as much as several, and
// consumes the cost if it fits. The limits are those of [WithLimit], whatever
// the rules of routes; a key is what [Limiter.Key] returns, or any text of your
// own. An error that is [ErrInvalidCost] or [ErrCostExceedsLimit] is about the
// cost; another one says that the store could not decide, or that ctx is done.
func (l *Limiter) AllowN(ctx context.Context, key string, cost int) (Result, error) {
	key = shortKey(key)
	var out outcome
	if out.err = ctx.Err(); out.err == nil {
		l.decide(ctx, l.base.policy, key, cost, nil, &out)
	}
	if l.observer != nil {
		l.observe(ctx, nil, l.base.policy, key, cost, out)
	}
	if out.degraded {
		return out.Result, nil
	}
	return out.Result, out.err
}

// Peek returns what [Limiter.Allow] would say under the limits of [WithLimit],
// and consumes nothing: Allowed is whether one request would be admitted now,
// Remaining how many would be.
func (l *Limiter) Peek(ctx context.Context, key string) (Result, error) {
	results := make([]Result, len(l.base.policy.limits))
	err := l.ask(ctx, func(ctx context.Context, s Store) error { return s.Peek(ctx, l.base.policy, shortKey(key), results) })
	if err != nil {
		return Result{}, err
	}
	return combine(results), nil
}

// Refund gives cost back to key, for a request that turned out not to count:
// never above the full quota, and only in the window that is open now. A cost
// that can never have been admitted is refused as AllowN does.
func (l *Limiter) Refund(ctx context.Context, key string, cost int) error {
	if cost < 1 {
		return fmt.Errorf("%w: %d; a refund is of at least 1", ErrInvalidCost, cost)
	}
	if cost > l.base.policy.maxCost {
		_, err := l.base.policy.tooMuch(cost)
		return err
	}
	return l.ask(ctx, func(ctx context.Context, s Store) error {
		return s.Refund(ctx, l.base.policy, shortKey(key), cost, nil)
	})
}

// Reset gives key its full quota again: under the default limit, under the rule
// of every route, and under what [WithLimitFunc] has chosen in this process so
// far. The key is that of [Limiter.Key], which may differ from route to route.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	key = shortKey(key)
	return l.ask(ctx, func(ctx context.Context, s Store) error {
		faults := []error{s.Reset(ctx, l.base.policy, key)}
		for _, p := range append(l.routes.Load().policies(), l.chosenPolicies()...) {
			faults = append(faults, s.Reset(ctx, p, key))
		}
		return errors.Join(faults...)
	})
}

// chosenPolicies returns policies of WithLimitFunc that have, between them,
// every budget that the default limit has not.
func (l *Limiter) chosenPolicies() (policies []*Policy) {
	var known []*budget
	add := func(p *Policy) (added bool) {
		for i := range p.memory {
			if b := &p.memory[i]; !slices.ContainsFunc(known, b.same) {
				known, added = append(known, b), true
			}
		}
		return added
	}
	add(l.base.policy)
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, p := range l.policies {
		if add(p) {
			policies = append(policies, p)
		}
	}
	return policies
}

// ask calls the store within the deadline. It is not for decisions: there is
// nothing to fall back on.
func (l *Limiter) ask(ctx context.Context, f func(context.Context, Store) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if l.guard == nil {
		return f(ctx, l.memory)
	}
	err := l.guard.call(ctx, func(ctx context.Context) error { return f(ctx, l.store) })
	if err != nil {
		l.guard.probe(l.base.policy)
	}
	return err
}

// giveBack refunds to the store that counted.
func (l *Limiter) giveBack(ctx context.Context, by Store, p *Policy, key string, cost int, left []time.Duration) error {
	if by == Store(l.memory) {
		return l.memory.Refund(ctx, p, key, cost, left)
	}
	return l.ask(ctx, func(ctx context.Context, s Store) error { return s.Refund(ctx, p, key, cost, left) })
}
