package ratelimit_test

import (
	"testing"
	"time"

	"github.com/aed328ba/ratelimit"
	"github.com/aed328ba/ratelimit/ratelimittest"
)

func TestRedisStoreKeepsTheContractOnMiniredis(t *testing.T) {
	clock := ratelimittest.NewClock()
	m, client := startMini(t, clock.Now())
	advance := func(d time.Duration) {
		clock.Advance(d)
		m.SetTime(clock.Now())
		m.Exists("") // TTLs follow the clock when a database is touched
	}
	ratelimittest.TestStore(t, func(*testing.T) ratelimit.Store {
		return ratelimit.NewRedisStore(client, ratelimit.WithDenyCache(0))
	}, ratelimittest.WithAdvance(advance), ratelimittest.WithGrain(2*time.Millisecond))
}

func TestRedisStoreKeepsTheContractOnARealRedis(t *testing.T) {
	client := startRedis(t).client()
	ratelimittest.TestStore(t, func(*testing.T) ratelimit.Store { return ratelimit.NewRedisStore(client) })
}
