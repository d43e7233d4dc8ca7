package ratelimittest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aed328ba/ratelimit"
	"github.com/aed328ba/ratelimit/ratelimittest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// calls are the four calls of a store, as something that may fail.
func calls(s ratelimit.Store) map[string]func(context.Context) error {
	p := with("n", ratelimit.FixedWindow, ratelimit.PerHour(100))
	results := make([]ratelimit.Result, 1)
	return map[string]func(context.Context) error{
		"Take":   func(ctx context.Context) error { return s.Take(ctx, p, "k", 1, results) },
		"Peek":   func(ctx context.Context) error { return s.Peek(ctx, p, "k", results) },
		"Refund": func(ctx context.Context) error { return s.Refund(ctx, p, "k", 1, nil) },
		"Reset":  func(ctx context.Context) error { return s.Reset(ctx, p, "k") },
	}
}

func TestAFaultyStoreFailsHangsAndIsSlowOnDemandInEachCall(t *testing.T) {
	other := errors.New("other")
	for name := range calls(nil) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := ratelimittest.NewFaultyStore(nil)
				call := calls(store)[name]
				start := time.Now()
				require.NoError(t, call(bg))
				store.Fail(nil)
				assert.ErrorIs(t, call(bg), ratelimittest.ErrFault)
				store.Fail(other)
				assert.ErrorIs(t, call(bg), other)
				assert.Zero(t, time.Since(start))

				store.Delay(time.Minute)
				require.NoError(t, call(bg))
				assert.Equal(t, time.Minute, time.Since(start))

				ctx, cancel := context.WithTimeout(bg, time.Second)
				defer cancel()
				assert.ErrorIs(t, call(ctx), context.DeadlineExceeded)
				assert.Equal(t, time.Minute+time.Second, time.Since(start), "a slow call ends with its context")

				store.Hang()
				ctx, cancel = context.WithTimeout(bg, time.Hour)
				defer cancel()
				assert.ErrorIs(t, call(ctx), context.DeadlineExceeded)
				assert.Equal(t, time.Hour+time.Minute+time.Second, time.Since(start), "a hung call ends with its context, not before")

				store.Heal()
				require.NoError(t, call(bg))
				assert.Equal(t, 7, store.Calls())
			})
		})
	}
}

func TestACallThatHangsGoesOnWhenTheStoreIsToldSomethingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct {
			tell func(*ratelimittest.FaultyStore)
			want error
		}{
			{(*ratelimittest.FaultyStore).Heal, nil},
			{func(s *ratelimittest.FaultyStore) { s.Fail(nil) }, ratelimittest.ErrFault},
			{func(s *ratelimittest.FaultyStore) { s.Delay(time.Second) }, nil},
		} {
			store := ratelimittest.NewFaultyStore(nil)
			store.Hang()
			done := make(chan error, 1)
			go func() { done <- calls(store)["Take"](bg) }()
			synctest.Wait()
			assert.Empty(t, done, "it hangs")
			test.tell(store)
			assert.ErrorIs(t, <-done, test.want)
		}
	})
}

func TestAFaultyStoreConsumesNothingWhileItFails(t *testing.T) {
	store := ratelimittest.NewFaultyStore(ratelimit.NewMemoryStore())
	l, err := ratelimit.NewLimiter(ratelimit.WithStore(store), ratelimit.WithFailure(ratelimit.FailClosed), ratelimit.WithLimit(ratelimit.PerHour(1)))
	require.NoError(t, err)
	store.Fail(nil)
	_, err = l.Allow(bg, "k")
	require.ErrorIs(t, err, ratelimittest.ErrFault)
	store.Heal()
	r, err := l.Allow(bg, "k")
	require.NoError(t, err)
	assert.True(t, r.Allowed)
}

func TestAFaultyStorePassesOnWhoCountsThere(t *testing.T) {
	inner := ratelimit.NewMemoryStore()
	limiter := func(requests int) error {
		_, err := ratelimit.NewLimiter(ratelimit.WithStore(ratelimittest.NewFaultyStore(inner)), ratelimit.WithName("api"), ratelimit.WithLimit(ratelimit.PerHour(requests)))
		return err
	}
	require.NoError(t, limiter(1))
	assert.ErrorContains(t, limiter(2), `"api" is taken`)
	assert.NoError(t, ratelimittest.NewFaultyStore(broken{Store: inner}).Claim("api", "x"), "a store that takes any limiter")
}
