package ratelimit_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/aed328ba/ratelimit"
	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A call is one call of a store for one key.
type call struct {
	kind string // take, peek, refund or reset
	cost int
}

// An answer is what a call returned for each limit, without the times.
type answer [2]struct {
	allowed   bool
	remaining int
}

// used is how much of each limit is used up: the whole state of a store whose
// limits are so slow that no time passes during a test.
type used [2]int

// sequential is what a store must look like from outside: two counters, and one
// call after another. Where stale is true, it may deny what would fit, which is
// what a cache of denials does.
func sequential(limits used, stale bool) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return used{} },
		Step: func(state, input, output any) (bool, any) {
			before, in, got := state.(used), input.(call), output.(answer)
			after := before
			var want answer
			fits := true
			for i := range limits {
				want[i].allowed = before[i]+in.cost <= limits[i]
				fits = fits && want[i].allowed
			}
			switch in.kind {
			case "reset":
				return true, used{}
			case "refund":
				for i := range limits {
					after[i] = max(0, before[i]-in.cost)
				}
				return true, after
			case "take":
				if stale && (!got[0].allowed || !got[1].allowed) {
					return true, before
				}
				for i := range limits {
					if fits {
						after[i] += in.cost
					}
				}
			}
			for i := range limits {
				want[i].remaining = limits[i] - after[i]
			}
			return got == want, after
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%v -> %v", input, output) },
		DescribeState:     func(state any) string { return fmt.Sprint(state) },
	}
}

// record lets several goroutines call a store for one key at random, and
// returns when each call began and ended and what it returned.
func record(t *testing.T, store ratelimit.Store, p *ratelimit.Policy, key string, goroutines, calls int) []porcupine.Operation {
	t.Helper()
	var mu sync.Mutex
	var history []porcupine.Operation
	start := time.Now()
	ready := make(chan struct{})
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			<-ready
			for range calls {
				in := call{"take", 1 + rand.IntN(3)}
				switch rand.IntN(12) {
				case 0, 1:
					in = call{"peek", 1}
				case 2, 3:
					in.kind = "refund"
				case 4:
					in.kind = "reset"
				}
				began := int64(time.Since(start))
				results, err := ask(store, p, key, in)
				ended := int64(time.Since(start))
				if !assert.NoError(t, err) {
					return
				}
				var out answer
				for i, r := range results {
					out[i].allowed, out[i].remaining = r.Allowed, r.Remaining
				}
				mu.Lock()
				history = append(history, porcupine.Operation{ClientId: g, Input: in, Call: began, Output: out, Return: ended})
				mu.Unlock()
			}
		})
	}
	close(ready)
	wg.Wait()
	return history
}

func ask(store ratelimit.Store, p *ratelimit.Policy, key string, in call) ([]ratelimit.Result, error) {
	ctx := context.Background()
	results := make([]ratelimit.Result, len(p.Limits()))
	switch in.kind {
	case "take":
		return results, store.Take(ctx, p, key, in.cost, results)
	case "peek":
		return results, store.Peek(ctx, p, key, results)
	case "refund":
		return nil, store.Refund(ctx, p, key, in.cost, nil)
	default:
		return nil, store.Reset(ctx, p, key)
	}
}

// slowLimits give back nothing in a test's time, whatever the algorithm.
func slowLimits(a ratelimit.Algorithm) (*ratelimit.Policy, used) {
	return must(ratelimit.NewPolicy("linear", a, ratelimit.PerDay(7), ratelimit.Per(11, 48*time.Hour))), used{7, 11}
}

// overlaps counts the calls that began before an earlier one had ended.
func overlaps(history []porcupine.Operation) (n int) {
	slices.SortFunc(history, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	var latest int64
	for _, op := range history {
		if op.Call < latest {
			n++
		}
		latest = max(latest, op.Return)
	}
	return n
}

func linearizable(t *testing.T, history []porcupine.Operation, model porcupine.Model) {
	t.Helper()
	result, info := porcupine.CheckOperationsVerbose(model, history, 20*time.Second)
	require.NotEqual(t, porcupine.Unknown, result, "the history is too long to be judged")
	if result != porcupine.Ok {
		for _, op := range history {
			t.Logf("%d..%d ns, goroutine %d: %s", op.Call, op.Return, op.ClientId, model.DescribeOperation(op.Input, op.Output))
		}
		t.Fatalf("no order of these %d calls explains what they returned; the longest that does: %v", len(history), info.PartialLinearizations())
	}
}

func TestConcurrentCallsForOneKeyHaveAnOrderThatExplainsEveryAnswer(t *testing.T) {
	stores := map[string]func(t *testing.T) (store ratelimit.Store, stale bool){
		"memory": func(*testing.T) (ratelimit.Store, bool) { return ratelimit.NewMemoryStore(), false },
		"redis": func(t *testing.T) (ratelimit.Store, bool) {
			return ratelimit.NewRedisStore(startRedis(t).client(), ratelimit.WithDenyCache(0)), false
		},
		"redis, denials cached": func(t *testing.T) (ratelimit.Store, bool) {
			return ratelimit.NewRedisStore(startRedis(t).client()), true
		},
	}
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			store, stale := open(t)
			concurrent := 0
			rounds, calls := 20, 20
			if name == "memory" { // whose calls are over before another goroutine is awake
				rounds, calls = 100, 60
			}
			for _, algorithm := range algorithms {
				policy, limits := slowLimits(algorithm)
				for range rounds {
					history := record(t, store, policy, "k", 6, calls)
					linearizable(t, history, sequential(limits, stale))
					require.True(t, slices.ContainsFunc(history, wasAdmitted), "where denials may be old, to deny everything explains them")
					require.NoError(t, store.Reset(context.Background(), policy, "k"))
					concurrent += overlaps(history)
				}
			}
			assert.Positive(t, concurrent, "calls ran beside one another")
		})
	}
}

func wasAdmitted(op porcupine.Operation) bool {
	got := op.Output.(answer)
	return op.Input.(call).kind == "take" && got[0].allowed && got[1].allowed
}

// A twoStepStore looks and then counts, as a store must not.
type twoStepStore struct{ *ratelimit.MemoryStore }

func (s twoStepStore) Take(ctx context.Context, p *ratelimit.Policy, key string, cost int, results []ratelimit.Result) error {
	if err := s.Peek(ctx, p, key, results); err != nil {
		return err
	}
	runtime.Gosched()
	fits := true
	for i, r := range results {
		results[i].Allowed = r.Remaining >= cost
		fits = fits && results[i].Allowed
	}
	for i := range results {
		if fits {
			results[i].Remaining -= cost
		}
	}
	if !fits {
		return nil
	}
	return s.MemoryStore.Take(ctx, p, key, cost, make([]ratelimit.Result, len(results)))
}

func TestAStoreThatDecidesInTwoStepsIsFoundOut(t *testing.T) {
	policy, limits := slowLimits(ratelimit.FixedWindow)
	alone := record(t, twoStepStore{ratelimit.NewMemoryStore()}, policy, "k", 1, 60)
	linearizable(t, alone, sequential(limits, false)) // one caller cannot tell
	for range 200 {
		history := record(t, twoStepStore{ratelimit.NewMemoryStore()}, policy, "k", 6, 10)
		if porcupine.CheckOperations(sequential(limits, false), history) {
			continue
		}
		return
	}
	t.Fatal("200 histories of a store that is not atomic were all found to be in order")
}
