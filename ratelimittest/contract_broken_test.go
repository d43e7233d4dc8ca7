package ratelimittest_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/aed328ba/ratelimit"
	"github.com/aed328ba/ratelimit/ratelimittest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A broken store is the memory store but for the calls that it has itself.
type broken struct {
	ratelimit.Store
	take   func(inner ratelimit.Store, p *ratelimit.Policy, key string, cost int, results []ratelimit.Result) error
	peek   func(inner ratelimit.Store, p *ratelimit.Policy, key string, results []ratelimit.Result) error
	refund func(inner ratelimit.Store, p *ratelimit.Policy, key string, cost int, left []time.Duration) error
	reset  func(inner ratelimit.Store, p *ratelimit.Policy, key string) error
}

func (s broken) Take(ctx context.Context, p *ratelimit.Policy, key string, cost int, results []ratelimit.Result) error {
	if s.take == nil {
		return s.Store.Take(ctx, p, key, cost, results)
	}
	return s.take(s.Store, p, key, cost, results)
}

func (s broken) Peek(ctx context.Context, p *ratelimit.Policy, key string, results []ratelimit.Result) error {
	if s.peek == nil {
		return s.Store.Peek(ctx, p, key, results)
	}
	return s.peek(s.Store, p, key, results)
}

func (s broken) Refund(ctx context.Context, p *ratelimit.Policy, key string, cost int, left []time.Duration) error {
	if s.refund == nil {
		return s.Store.Refund(ctx, p, key, cost, left)
	}
	return s.refund(s.Store, p, key, cost, left)
}

func (s broken) Reset(ctx context.Context, p *ratelimit.Policy, key string) error {
	if s.reset == nil {
		return s.Store.Reset(ctx, p, key)
	}
	return s.reset(s.Store, p, key)
}

// with returns a policy that is known to be right.
func with(name string, a ratelimit.Algorithm, limits ...ratelimit.Limit) *ratelimit.Policy {
	other, err := ratelimit.NewPolicy(name, a, limits...)
	if err != nil {
		panic(err)
	}
	return other
}

var bg = context.Background()

// after changes what the memory store says to Take.
func after(change func(r *ratelimit.Result)) broken {
	return broken{take: func(s ratelimit.Store, p *ratelimit.Policy, key string, cost int, results []ratelimit.Result) error {
		err := s.Take(bg, p, key, cost, results)
		for i := range results {
			change(&results[i])
		}
		return err
	}}
}

// inner makes of each call one for another policy, key or cost.
func inner(change func(p *ratelimit.Policy, key string, cost int) (*ratelimit.Policy, string, int)) broken {
	return broken{take: func(s ratelimit.Store, p *ratelimit.Policy, key string, cost int, results []ratelimit.Result) error {
		q, key, cost := change(p, key, cost)
		err := s.Take(bg, q, key, cost, results)
		for i := range results {
			results[i].Limit = p.Limits()[i]
		}
		return err
	}}
}

// brokenStores are faults that stores have had, and the rule that finds them.
var brokenStores = map[string]struct {
	store broken
	rule  string
}{
	"looks, then counts": {broken{take: func(s ratelimit.Store, p *ratelimit.Policy, key string, cost int, results []ratelimit.Result) error {
		if err := s.Peek(bg, p, key, results); err != nil || results[0].Remaining < cost {
			return errors.Join(err, s.Take(bg, p, key, cost, results))
		}
		time.Sleep(time.Nanosecond) // a round trip
		_ = s.Take(bg, p, key, cost, results)
		for i := range results {
			results[i].Allowed, results[i].RetryAfter = true, 0
		}
		return nil
	}}, "exactly as many"},
	"counts each limit by itself": {broken{take: func(s ratelimit.Store, p *ratelimit.Policy, key string, cost int, results []ratelimit.Result) error {
		for i, l := range p.Limits() {
			_ = s.Take(bg, with(p.Name(), p.Algorithm(), l), key, cost, results[i:i+1])
		}
		return nil
	}}, "from every limit or from none"},
	"counts what it denies": {broken{take: func(s ratelimit.Store, p *ratelimit.Policy, key string, cost int, results []ratelimit.Result) error {
		err := s.Take(bg, p, key, cost, results)
		if !results[0].Allowed && results[0].Remaining > 0 {
			for s.Take(bg, p, key, 1, results) == nil && results[0].Allowed {
				continue
			}
		}
		return err
	}}, "a denied cost"},
	"counts 1 whatever the cost": {inner(func(p *ratelimit.Policy, key string, _ int) (*ratelimit.Policy, string, int) { return p, key, 1 }), "consumed whole"},
	"forgets the name": {inner(func(p *ratelimit.Policy, key string, cost int) (*ratelimit.Policy, string, int) {
		return with("x", p.Algorithm(), p.Limits()...), key, cost
	}), "names, algorithms"},
	"joins name and key": {inner(func(p *ratelimit.Policy, key string, cost int) (*ratelimit.Policy, string, int) {
		return with("x", p.Algorithm(), p.Limits()...), p.Name() + key, cost
	}), "names, algorithms"},
	"has only one algorithm": {inner(func(p *ratelimit.Policy, key string, cost int) (*ratelimit.Policy, string, int) {
		return with(p.Name(), ratelimit.FixedWindow, p.Limits()...), key, cost
	}), "no window admits more"},
	"counts by the number of requests too": {inner(func(p *ratelimit.Policy, key string, cost int) (*ratelimit.Policy, string, int) {
		return with(p.String(), p.Algorithm(), p.Limits()...), key, cost
	}), "share a count"},
	"reads braces in keys": {inner(func(p *ratelimit.Policy, key string, cost int) (*ratelimit.Policy, string, int) {
		if _, tag, ok := strings.Cut(key, "{"); ok {
			if tag, _, ok := strings.Cut(tag, "}"); ok {
				key = tag
			}
		}
		return p, strings.ToLower(key), cost
	}), "keys are opaque"},
	"cuts keys": {inner(func(p *ratelimit.Policy, key string, cost int) (*ratelimit.Policy, string, int) {
		return p, key[:min(len(key), 127)], cost
	}), "keys are opaque"},
	"says nothing about Remaining": {after(func(r *ratelimit.Result) { r.Remaining = 0 }), "consumed whole"},
	"says less than 0":             {after(func(r *ratelimit.Result) { r.Remaining-- }), "consumed whole"},
	"says to wait a little less": {after(func(r *ratelimit.Result) {
		if r.RetryAfter > 1 {
			r.RetryAfter--
		}
	}), "waits RetryAfter"},
	"says to wait a little longer": {after(func(r *ratelimit.Result) {
		if r.RetryAfter > 1 {
			r.RetryAfter++
		}
	}), "waits RetryAfter"},
	"says not to wait":           {after(func(r *ratelimit.Result) { r.RetryAfter = 0 }), "waits RetryAfter"},
	"resets a little sooner":     {after(func(r *ratelimit.Result) { r.ResetAfter-- }), "after ResetAfter"},
	"resets a little later":      {after(func(r *ratelimit.Result) { r.ResetAfter++ }), "after ResetAfter"},
	"leaves results as they are": {broken{take: func(ratelimit.Store, *ratelimit.Policy, string, int, []ratelimit.Result) error { return nil }}, "each limit speaks"},
	"fails where the client leaves": {broken{refund: func(s ratelimit.Store, p *ratelimit.Policy, key string, cost int, left []time.Duration) error {
		return errors.New("closed")
	}}, "a canceled context"},
	"consumes when it peeks": {broken{peek: func(s ratelimit.Store, p *ratelimit.Policy, key string, results []ratelimit.Result) error {
		return s.Take(bg, p, key, 1, results)
	}}, "Peek says"},
	"forgets everything on a refund": {broken{refund: func(s ratelimit.Store, p *ratelimit.Policy, key string, cost int, left []time.Duration) error {
		return s.Reset(bg, p, key)
	}}, "Refund gives back"},
	"refunds whatever the window": {broken{refund: func(s ratelimit.Store, p *ratelimit.Policy, key string, cost int, left []time.Duration) error {
		return s.Refund(bg, p, key, cost, nil)
	}}, "across a window"},
	"refunds too late": {broken{refund: func(s ratelimit.Store, p *ratelimit.Policy, key string, cost int, left []time.Duration) error {
		return s.Refund(bg, p, key, cost, nil)
	}}, "a late Refund"},
	"never refunds": {broken{refund: func(ratelimit.Store, *ratelimit.Policy, string, int, []time.Duration) error { return nil }}, "Refund gives back"},
	"never resets":  {broken{reset: func(ratelimit.Store, *ratelimit.Policy, string) error { return nil }}, "Reset gives"},
	"rounds periods down to seconds": {inner(func(p *ratelimit.Policy, key string, cost int) (*ratelimit.Policy, string, int) {
		limits := make([]ratelimit.Limit, len(p.Limits()))
		for i, l := range p.Limits() {
			limits[i] = l
			limits[i].Period = max(time.Second, l.Period.Truncate(time.Second))
		}
		return with(p.Name(), p.Algorithm(), limits...), key, cost
	}), "a period of a millisecond"},
}

const brokenStoresVariable = "RATELIMITTEST_BROKEN_STORES"

// TestBrokenStores fails where the test below runs it.
func TestBrokenStores(t *testing.T) {
	if os.Getenv(brokenStoresVariable) == "" {
		t.Skip("run by TestTheContractFindsStoresThatBreakIt")
	}
	for name, test := range brokenStores {
		t.Run(name, func(t *testing.T) {
			ratelimittest.TestStore(t, func(*testing.T) ratelimit.Store {
				test.store.Store = ratelimit.NewMemoryStore()
				return test.store
			}, ratelimittest.WithSynctest(), ratelimittest.WithGrain(0))
		})
	}
}

func TestTheContractFindsStoresThatBreakIt(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	run := exec.Command(self, "-test.run=^TestBrokenStores$")
	run.Env = append(os.Environ(), brokenStoresVariable+"=1")
	out, err := run.CombinedOutput()
	var failed *exec.ExitError
	require.ErrorAs(t, err, &failed, "the contract found nothing")
	require.Equal(t, 1, failed.ExitCode(), "%s", out)
	underscores := strings.NewReplacer(" ", "_")
	for name, test := range brokenStores {
		rule := regexp.MustCompile("--- FAIL: TestBrokenStores/" + regexp.QuoteMeta(underscores.Replace(name)) + "/.*" + underscores.Replace(test.rule))
		assert.True(t, rule.Match(out), "a store that %s: want a failure of the rule %q", name, test.rule)
	}
	if t.Failed() {
		t.Logf("%s", out)
	}
}
