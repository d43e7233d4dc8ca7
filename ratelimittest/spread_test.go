package ratelimittest_test

import (
	"context"
	"hash/crc32"
	"testing"
	"time"

	"github.com/aed328ba/ratelimit"
	"github.com/aed328ba/ratelimit/ratelimittest"
)

// spread is a store made of several, each of which counts the keys that fall to
// it: for who has three Redis servers and no cluster.
type spread []ratelimit.Store

func (s spread) of(key string) ratelimit.Store {
	return s[crc32.ChecksumIEEE([]byte(key))%uint32(len(s))]
}

func (s spread) Take(ctx context.Context, p *ratelimit.Policy, key string, cost int, results []ratelimit.Result) error {
	return s.of(key).Take(ctx, p, key, cost, results)
}

func (s spread) Peek(ctx context.Context, p *ratelimit.Policy, key string, results []ratelimit.Result) error {
	return s.of(key).Peek(ctx, p, key, results)
}

func (s spread) Refund(ctx context.Context, p *ratelimit.Policy, key string, cost int, left []time.Duration) error {
	return s.of(key).Refund(ctx, p, key, cost, left)
}

func (s spread) Reset(ctx context.Context, p *ratelimit.Policy, key string) error {
	return s.of(key).Reset(ctx, p, key)
}

func TestSpread(t *testing.T) {
	ratelimittest.TestStore(t, func(*testing.T) ratelimit.Store {
		return spread{ratelimit.NewMemoryStore(), ratelimit.NewMemoryStore(), ratelimit.NewMemoryStore()}
	}, ratelimittest.WithSynctest())
}
