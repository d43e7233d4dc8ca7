package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
)

// An Option is a setting of [New] and [NewLimiter]. Of two that set the same,
// the later one counts.
type Option interface{ apply(*config) }

type option func(*config)

func (o option) apply(c *config) { o(c) }

// config is what the options say, and what is wrong with it.
type config struct {
	name       string
	limits     []Limit
	limitFunc  func(*gin.Context) []Limit
	routes     map[string]string
	algorithm  Algorithm
	key        keySpec
	ipv6Prefix int
	store      Store
	cost       func(*gin.Context) int
	skip       func(*gin.Context) bool
	refund     func(*gin.Context) bool
	styles     []HeaderStyle
	denied     gin.HandlerFunc
	dryRun     bool
	observer   func(context.Context, Event)
	logger     *slog.Logger
	clock      func() time.Time
	failure    FailurePolicy
	timeout    time.Duration

	faults []error
}

func newConfig(opts []Option) *config {
	c := &config{styles: []HeaderStyle{HeadersXRateLimit}, ipv6Prefix: defaultIPv6Prefix, timeout: defaultTimeout}
	for i, o := range opts {
		if o == nil {
			c.faults = append(c.faults, fmt.Errorf("ratelimit: option %d is nil", i+1))
			continue
		}
		o.apply(c)
	}
	if c.store == nil {
		c.store = c.newMemoryStore()
	}
	return c
}

// newMemoryStore returns a store of the limiter's own, on its clock.
func (c *config) newMemoryStore() *MemoryStore {
	return NewMemoryStore(memoryOption(func(s *MemoryStore) { s.clock = c.clock }))
}

func (c *config) fault(format string, args ...any) {
	c.faults = append(c.faults, fmt.Errorf("ratelimit: "+format, args...))
}

// WithLimit sets the limits, all of which must hold: one decision counts a
// request against each of them or against none. Without it there is nothing to
// enforce, which is refused. At most 8, of different periods.
func WithLimit(limits ...Limit) Option {
	return option(func(c *config) { c.limits = limits })
}

// WithLimitFunc chooses the limits for each request, by plan or tenant. An
// empty slice means those of [WithLimit], which must be given too; they also
// hold where the function returns something that cannot be enforced, which is
// logged once. Requests of one key share their count as far as their limits
// have the same period; a burst above the number of requests counts by itself.
func WithLimitFunc(f func(*gin.Context) []Limit) Option {
	return option(func(c *config) {
		if f == nil {
			c.fault("WithLimitFunc: the function is nil")
		}
		c.limitFunc = f
	})
}

// WithRoutes gives routes rules of their own, as [ParseRule] reads them:
//
//	map[string]string{
//		"POST /login":  "5/minute by ip",
//		"/search":      "20/minute cost 2", // any method
//		"/admin/*":     "10/minute",        // everything below, not /admin itself
//		"GET /healthz": "off",
//	}
//
// A route is a method, or none for any, and a pattern as it was given to Gin
// with the groups before it ([gin.Context.FullPath]). Of several rows the most
// specific counts: exact before "*", longer before shorter, with a method
// before without.
//
// A rule replaces the limiter's default limit and [WithLimitFunc]; the key, the
// algorithm and the cost that it does not mention are the limiter's. Each row
// has a budget of its own, for all the routes it matches together; "as NAME"
// makes several share one. What matches no row counts under the default limit,
// and so does what matches no route.
//
// The table may come from a file as it is. Two rows for one route and a rule
// that cannot be enforced are errors of [NewLimiter]; [Limiter.Verify] finds
// rows that match no route. See [Limiter.SetRoutes] for changing them later.
func WithRoutes(table map[string]string) Option {
	return option(func(c *config) { c.routes = table })
}

// WithAlgorithm sets how requests are counted. The default is [FixedWindow].
func WithAlgorithm(a Algorithm) Option {
	return option(func(c *config) { c.algorithm = a })
}

// WithKeyFunc sets who counts as one client. The default is [KeyByIP].
func WithKeyFunc(f KeyFunc) Option {
	return option(func(c *config) {
		c.key = specOf(f)
		if err := c.key.validate(); err != nil {
			c.fault("WithKeyFunc: %w", err)
		}
	})
}

// WithIPv6Prefix sets how many bits of an IPv6 address count as one client, 32
// to 128. The default is 64, what a single subscriber is given at least; use 56
// or 48 where yours are given more. 128 lets a client escape its limit by using
// the addresses it owns.
func WithIPv6Prefix(bits int) Option {
	return option(func(c *config) {
		if bits < 32 || bits > 128 {
			c.fault("WithIPv6Prefix: %d bits; use 32 to 128 (default %d)", bits, defaultIPv6Prefix)
		}
		c.ipv6Prefix = bits
	})
}

// WithStore sets where the counts are kept. The default is a [MemoryStore] of
// the limiter's own. A store that is given to several limiters needs each of
// them to have a name; see [WithName].
func WithStore(s Store) Option {
	return option(func(c *config) {
		switch {
		case s == nil:
			c.fault("WithStore: the store is nil")
		case isNil(s):
			c.fault("WithStore: the store is a nil %T", s)
		default:
			c.store = s
		}
	})
}

// WithName sets the name under which the store counts, which also stands in
// logs, events and draft headers: 1 to 64 letters, digits and any of ".", "_",
// "-" and "/". Limiters of one name, one store and the same settings share one
// budget; other settings under the same name are refused. Rules of routes are
// not compared: limiters of one name should have the same. The default is a
// budget of its own in its store.
func WithName(name string) Option {
	return option(func(c *config) {
		if err := validateName(name); err != nil {
			c.fault("WithName: %w", err)
		}
		if name == defaultName {
			c.fault("WithName: %q is what a limiter without a name is called; use another", name)
		}
		c.name = name
	})
}

const defaultName = "default"

// policyName is the name under which the default limit counts.
func (c *config) policyName() string {
	if c.dryRun {
		return c.name + " (dry-run)" // no name can have a blank: nothing that is enforced counts here
	}
	return c.name
}

const nameLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/"

func validateName(name string) error {
	if name == "" || len(name) > 64 {
		return fmt.Errorf("the name %q has %d characters; use 1 to 64", name, len(name))
	}
	for _, r := range name {
		if !strings.ContainsRune(nameLetters, r) {
			return fmt.Errorf(`the name %q has a %q; use letters, digits, ".", "_", "-" and "/"`, name, r)
		}
	}
	return nil
}

// WithCost sets what a request costs, in requests of the limit. The default is
// 1. A request of cost 0 passes and is not counted; one below 0 counts as 1,
// which is logged once; one that costs more than the limit can ever admit is
// denied without a promise that trying again helps.
func WithCost(f func(*gin.Context) int) Option {
	return option(func(c *config) {
		if f == nil {
			c.fault("WithCost: the function is nil")
		}
		c.cost = f
	})
}

// WithSkip lets the requests pass uncounted for which f returns true, such as
// health checks. The default is to count all but CORS preflights.
func WithSkip(f func(*gin.Context) bool) Option {
	return option(func(c *config) {
		if f == nil {
			c.fault("WithSkip: the function is nil")
		}
		c.skip = f
	})
}

// WithRefund asks f after the handlers ran, and gives the cost back where it
// returns true: to count only failed logins, or not to count a failure of the
// server's own. The cost goes back to the window it was counted in or to none,
// never above the full quota. Where a handler panicked, f finds the status set
// to 500. The default is to give nothing back.
func WithRefund(f func(*gin.Context) bool) Option {
	return option(func(c *config) {
		if f == nil {
			c.fault("WithRefund: the function is nil")
		}
		c.refund = f
	})
}

// WithHeaders sets the response headers. The default is [HeadersXRateLimit].
func WithHeaders(styles ...HeaderStyle) Option {
	return option(func(c *config) {
		if err := validateStyles(styles); err != nil {
			c.fault("WithHeaders: %w", err)
		}
		c.styles = styles
	})
}

// WithDeniedHandler sets what answers a denied request. Status 429, the headers
// and Retry-After are set before it is called and the request is aborted
// whatever it does, so that it only needs to write a body. The default writes
// problem details (RFC 9457).
func WithDeniedHandler(h gin.HandlerFunc) Option {
	return option(func(c *config) {
		if h == nil {
			c.fault("WithDeniedHandler: the handler is nil")
		}
		c.denied = h
	})
}

// WithDryRun makes a limiter that decides and is observed, but sets no header
// and denies nothing, to try a limit out on real traffic. It counts apart from
// every limiter that enforces.
func WithDryRun() Option {
	return option(func(c *config) { c.dryRun = true })
}

// WithObserver calls f with every decision, in the request's own goroutine:
// count and return. The default is to observe nothing.
func WithObserver(f func(context.Context, Event)) Option {
	return option(func(c *config) {
		if f == nil {
			c.fault("WithObserver: the function is nil")
		}
		c.observer = f
	})
}

// WithLogger sets where the limiter writes its few warnings. The default is
// [slog.Default].
func WithLogger(logger *slog.Logger) Option {
	return option(func(c *config) {
		if logger == nil {
			c.fault("WithLogger: the logger is nil; use slog.New(slog.DiscardHandler) to log nothing")
		}
		c.logger = logger
	})
}

// WithFailure sets what happens while the store cannot decide, which a
// [MemoryStore] always can. The default is [FailLocal].
func WithFailure(f FailurePolicy) Option {
	return option(func(c *config) {
		if f >= failurePolicyCount {
			c.fault("WithFailure: unknown policy %v; use FailLocal, FailOpen or FailClosed", f)
		}
		c.failure = f
	})
}

// WithTimeout sets how long one call of the store may take: what a failing
// store adds to a request, at most. The default is 100 ms; 1 ms to 1 minute.
func WithTimeout(d time.Duration) Option {
	return option(func(c *config) {
		if d < time.Millisecond || d > time.Minute {
			c.fault("WithTimeout: %v; use 1ms to 1m (default %v)", d, defaultTimeout)
		}
		c.timeout = d
	})
}

// A ClockOption sets the clock of a limiter or of a store; see [WithClock].
type ClockOption interface {
	Option
	MemoryOption
	RedisOption
}

type clockOption func() time.Time

func (o clockOption) apply(c *config) {
	if o == nil {
		c.fault("WithClock: the function is nil")
	}
	c.clock = o
}

func (o clockOption) applyMemory(s *MemoryStore) { s.clock = o }
func (o clockOption) applyRedis(s *RedisStore)   { s.clock = o }

// WithClock sets the clock, for tests: of a limiter and the store it makes for
// itself, or of a store that is made by hand. The default is the time package,
// which testing/synctest can move too.
func WithClock(now func() time.Time) ClockOption { return clockOption(now) }

// isNil reports whether v is nil or holds a nil pointer.
func isNil(v any) bool {
	r := reflect.ValueOf(v)
	return v == nil || r.Kind() == reflect.Pointer && r.IsNil()
}

// check finds what is wrong with the settings as a whole.
func (c *config) check() error {
	if s, ok := c.store.(interface{ validate() error }); ok {
		if err := s.validate(); err != nil {
			c.faults = append(c.faults, err)
		}
	}
	if err := c.checkRoom(c.limits); err != nil {
		c.fault("%w", err)
	}
	return errors.Join(c.faults...)
}

func (c *config) checkRoom(limits []Limit) error {
	if s, ok := c.store.(*MemoryStore); ok && s.maxKeys > 0 && s.maxKeys < int64(len(limits)) {
		return fmt.Errorf("WithMaxKeys: %d keys cannot hold the %d limits of one client; use more", s.maxKeys, len(limits))
	}
	return nil
}
