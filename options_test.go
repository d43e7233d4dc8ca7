package ratelimit_test

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/aed328ba/ratelimit"
	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOptionsThatCannotBeEnforcedAreErrorsThatSayHowToMendThem(t *testing.T) {
	ok := ratelimit.WithLimit(ratelimit.PerMinute(1))
	limit := func(l ratelimit.Limit) []ratelimit.Option { return []ratelimit.Option{ratelimit.WithLimit(l)} }
	with := func(o ratelimit.Option) []ratelimit.Option { return []ratelimit.Option{ok, o} }
	key := func(k ratelimit.KeyFunc) []ratelimit.Option { return with(ratelimit.WithKeyFunc(k)) }
	for want, opts := range map[string][]ratelimit.Option{
		"no limit given; add ratelimit.WithLimit(ratelimit.PerMinute(100)) or the like":                                                        {},
		"9 limits given, at most 8 can be enforced together":                                                                                   {ratelimit.WithLimit(nineLimits()...)},
		`limit "0/0s": the limit is empty; use ratelimit.PerMinute(100) or the like`:                                                           limit(ratelimit.Limit{}),
		`limit "0/minute": 0 requests would never let anything pass; use at least 1`:                                                           limit(ratelimit.PerMinute(0)),
		`limit "-1/minute": -1 requests would never let anything pass; use at least 1`:                                                         limit(ratelimit.PerMinute(-1)),
		`limit "1/8784h burst 2147483647": a bucket of 2147483647 takes longer than 366 days to fill at 1 per 8784h0m0s; use a smaller burst`:  limit(ratelimit.Per(1, 366*24*time.Hour).WithBurst(1<<31 - 1)),
		`limit "5/0s": period 0s is too short; use at least 1ms`:                                                                               limit(ratelimit.Per(5, 0)),
		`limit "5/-1s": period -1s is too short; use at least 1ms`:                                                                             limit(ratelimit.Per(5, -time.Second)),
		`limit "5/8785h": period 8785h0m0s is too long; use at most 366 days`:                                                                  limit(ratelimit.Per(5, 366*24*time.Hour+time.Hour)),
		`limit "5/second burst -1": burst -1 is negative; use at least 1, or 0 for a burst of 5`:                                               limit(ratelimit.PerSecond(5).WithBurst(-1)),
		`limit "1/day burst 1000": a bucket of 1000 takes longer than 366 days to fill at 1 per 24h0m0s; use a smaller burst`:                  limit(ratelimit.PerDay(1).WithBurst(1000)),
		`limits "1/second" and "2/second" have the same period, so that one of them decides alone; keep the stricter`:                          {ratelimit.WithLimit(ratelimit.PerSecond(1), ratelimit.PerSecond(2))},
		`limits "1/1.5ms" and "1/2ms" have the same period, so that one of them decides alone; keep the stricter`:                              {ratelimit.WithLimit(ratelimit.Per(1, 1500*time.Microsecond), ratelimit.Per(1, 2*time.Millisecond))},
		`unknown algorithm Algorithm(9); use FixedWindow, SlidingWindowLog, SlidingWindowCounter or TokenBucket`:                               with(ratelimit.WithAlgorithm(9)),
		`limit "100001/minute": a sliding-window-log keeps a record of every request, at most 100000; use SlidingWindowCounter or TokenBucket`: {ratelimit.WithLimit(ratelimit.PerMinute(100_001)), ratelimit.WithAlgorithm(ratelimit.SlidingWindowLog)},
		"option 2 is nil":                                                   with(nil),
		"WithLimitFunc: the function is nil":                                with(ratelimit.WithLimitFunc(nil)),
		"WithKeyFunc: the key function is nil":                              key(nil),
		`WithKeyFunc: KeyByHeader: "" is not a header name`:                 key(ratelimit.KeyByHeader("")),
		`WithKeyFunc: KeyByHeader: "X Api" is not a header name`:            key(ratelimit.KeyByHeader("X Api")),
		`WithKeyFunc: KeyByCookie: "a=b" is not a cookie name`:              key(ratelimit.KeyByCookie("a=b")),
		"WithKeyFunc: KeyByQuery: the name is empty":                        key(ratelimit.KeyByQuery("")),
		`WithKeyFunc: KeyByQuery: the name "a=b" has a "="`:                 key(ratelimit.KeyByQuery("a=b")),
		`WithKeyFunc: KeyByParam: the name is empty; use "id" for the`:      key(ratelimit.KeyByParam("")),
		"WithKeyFunc: KeyByUser: the context key is empty":                  key(ratelimit.KeyByUser("")),
		"WithKeyFunc: KeyByUser: a []string cannot be a context key":        key(ratelimit.KeyByUser([]string{"a"})),
		"WithKeyFunc: JoinKeys: no key given":                               key(ratelimit.JoinKeys()),
		"WithKeyFunc: the key function is nil\n":                            {ratelimit.WithKeyFunc(ratelimit.FirstKey(nil, ratelimit.KeyByIP())), nil},
		"WithIPv6Prefix: 0 bits; use 32 to 128 (default 64)":                with(ratelimit.WithIPv6Prefix(0)),
		"WithIPv6Prefix: 129 bits; use 32 to 128 (default 64)":              with(ratelimit.WithIPv6Prefix(129)),
		"WithStore: the store is nil":                                       with(ratelimit.WithStore(nil)),
		"WithStore: the store is a nil *ratelimit.MemoryStore":              with(ratelimit.WithStore((*ratelimit.MemoryStore)(nil))),
		`WithName: the name "" has 0 characters; use 1 to 64`:               with(ratelimit.WithName("")),
		`WithName: the name "a{b}" has a '{'; use letters, digits, ".", "_`: with(ratelimit.WithName("a{b}")),
		`WithName: the name "größe" has a 'ö'; use letters, digits`:         with(ratelimit.WithName("größe")),
		`WithName: the name "a\"b" has a '"'; use letters`:                  with(ratelimit.WithName(`a"b`)),
		`WithName: "default" is what a limiter without a name is called`:    with(ratelimit.WithName("default")),
		"WithCost: the function is nil":                                     with(ratelimit.WithCost(nil)),
		"WithSkip: the function is nil":                                     with(ratelimit.WithSkip(nil)),
		"WithRefund: the function is nil":                                   with(ratelimit.WithRefund(nil)),
		"WithHeaders: no style given; use HeadersNone for no headers":       with(ratelimit.WithHeaders()),
		"WithHeaders: unknown style HeaderStyle(99)":                        with(ratelimit.WithHeaders(99)),
		"WithHeaders: HeadersNone cannot be combined with other styles":     with(ratelimit.WithHeaders(ratelimit.HeadersDraft6, ratelimit.HeadersNone)),
		"WithHeaders: two of the styles set X-Ratelimit-Limit; keep one":    with(ratelimit.WithHeaders(ratelimit.HeadersXRateLimit, ratelimit.HeadersXRateLimitDelta)),
		"WithHeaders: two of the styles set Ratelimit-Policy; keep one":     with(ratelimit.WithHeaders(ratelimit.HeadersDraft6, ratelimit.HeadersDraft10)),
		"WithDeniedHandler: the handler is nil":                             with(ratelimit.WithDeniedHandler(nil)),
		"WithObserver: the function is nil":                                 with(ratelimit.WithObserver(nil)),
		"WithLogger: the logger is nil; use slog.New(slog.DiscardHandler)":  with(ratelimit.WithLogger(nil)),
		"WithClock: the function is nil":                                    with(ratelimit.WithClock(nil)),
		"WithMaxKeys: 0 keys cannot hold anybody's count; use at least 1 (": with(ratelimit.WithStore(ratelimit.NewMemoryStore(ratelimit.WithMaxKeys(0)))),
		"WithMaxKeys: -5 keys cannot hold anybody's count":                  with(ratelimit.WithStore(ratelimit.NewMemoryStore(ratelimit.WithMaxKeys(-5), nil))),
		"WithMaxKeys: 1 keys cannot hold the 2 limits of one client; use more": {
			ratelimit.WithLimit(ratelimit.PerSecond(1), ratelimit.PerMinute(1)), ratelimit.WithStore(ratelimit.NewMemoryStore(ratelimit.WithMaxKeys(1))),
		},
	} {
		_, err := ratelimit.NewLimiter(opts...)
		if assert.ErrorContains(t, err, "ratelimit: "+want) {
			assert.PanicsWithError(t, err.Error(), func() { ratelimit.New(opts...) }, "New panics with the same text")
		}
	}
}

func nineLimits() (limits []ratelimit.Limit) {
	for i := range 9 {
		limits = append(limits, ratelimit.Per(1, time.Duration(i+1)*time.Second))
	}
	return limits
}

func TestNumbersBeyond32BitsAreRefused(t *testing.T) {
	beyond := math.MaxInt32
	if beyond++; beyond < 0 {
		return // an int of 32 bits has none
	}
	_, err := ratelimit.NewLimiter(ratelimit.WithLimit(ratelimit.PerMinute(beyond), ratelimit.PerSecond(5).WithBurst(beyond)))
	assert.ErrorContains(t, err, `limit "2147483648/minute": 2147483648 requests is too large (at most 2147483647)`)
	assert.ErrorContains(t, err, `limit "5/second burst 2147483648": burst 2147483648 is too large (at most 2147483647)`)
}

func TestOneErrorNamesEveryFault(t *testing.T) {
	_, err := ratelimit.NewLimiter(ratelimit.WithLimit(ratelimit.PerMinute(0), ratelimit.Per(1, -1)), ratelimit.WithCost(nil), ratelimit.WithName("a b"), ratelimit.WithAlgorithm(7))
	require.Error(t, err)
	for _, want := range []string{"0 requests", "period -1ns", "WithCost", `"a b"`, "Algorithm(7)"} {
		assert.ErrorContains(t, err, want)
	}
	assert.Equal(t, 5, strings.Count(err.Error(), "ratelimit: "), err)
}

func TestLimitersOnOneStoreNeverShareABudgetByAccident(t *testing.T) {
	store := ratelimit.NewMemoryStore()
	newOn := func(opts ...ratelimit.Option) error {
		_, err := ratelimit.NewLimiter(append([]ratelimit.Option{ratelimit.WithStore(store), ratelimit.WithLimit(ratelimit.PerMinute(5))}, opts...)...)
		return err
	}
	require.NoError(t, newOn())
	assert.EqualError(t, newOn(), "ratelimit: WithStore: the store already serves a limiter without a name, and two would share their counts; give each a name with ratelimit.WithName")
	require.NoError(t, newOn(ratelimit.WithDryRun()), "a dry run counts apart")
	require.NoError(t, newOn(ratelimit.WithName("api")))
	require.NoError(t, newOn(ratelimit.WithName("api")), "the same name and settings share on purpose")
	assert.EqualError(t, newOn(ratelimit.WithName("api"), ratelimit.WithLimit(ratelimit.PerMinute(6))),
		`ratelimit: WithName: "api" is taken on this store by a limiter with other settings (5/minute using fixed-window, here 6/minute using fixed-window); use another name`)
	assert.Error(t, newOn(ratelimit.WithName("api"), ratelimit.WithAlgorithm(ratelimit.TokenBucket)))
	assert.Error(t, newOn(ratelimit.WithName("api"), ratelimit.WithLimitFunc(func(*gin.Context) []ratelimit.Limit { return nil })))
}

func TestLimitersOfOneNameShareABudgetOnPurpose(t *testing.T) {
	store := ratelimit.NewMemoryStore()
	var limiters [2]*ratelimit.Limiter
	for i := range limiters {
		limiters[i] = must(ratelimit.NewLimiter(ratelimit.WithStore(store), ratelimit.WithName("api"), ratelimit.WithLimit(ratelimit.PerMinute(3))))
	}
	assert.Equal(t, 2, must(limiters[0].Allow(context.Background(), "k")).Remaining)
	assert.Equal(t, 1, must(limiters[1].Allow(context.Background(), "k")).Remaining)
}

func TestAlgorithmsHaveNames(t *testing.T) {
	for _, a := range algorithms {
		text, err := a.MarshalText()
		require.NoError(t, err)
		var again ratelimit.Algorithm
		require.NoError(t, again.UnmarshalText([]byte(strings.ToUpper(string(text)))))
		assert.Equal(t, a, again)
	}
	var a ratelimit.Algorithm
	assert.EqualError(t, a.UnmarshalText([]byte("tokenbucket")),
		`ratelimit: unknown algorithm "tokenbucket" (use fixed-window, sliding-window-log, sliding-window-counter, token-bucket); did you mean "token-bucket"?`)
	_, err := ratelimit.Algorithm(9).MarshalText()
	assert.EqualError(t, err, "ratelimit: unknown algorithm Algorithm(9); use FixedWindow, SlidingWindowLog, SlidingWindowCounter or TokenBucket")
}

func TestErrorsOfAStoreReachTheCaller(t *testing.T) {
	l := must(ratelimit.NewLimiter(ratelimit.WithLimit(ratelimit.PerMinute(1)), ratelimit.WithStore(brokenStore{ratelimit.NewMemoryStore()}), ratelimit.WithFailure(ratelimit.FailClosed)))
	_, err := l.Allow(context.Background(), "k")
	assert.Error(t, err)
	require.ErrorIs(t, err, ratelimit.ErrStoreUnavailable)
	assert.ErrorContains(t, err, "broken")
}
