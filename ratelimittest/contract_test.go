package ratelimittest_test

import (
	"testing"
	"time"

	"github.com/aed328ba/ratelimit"
	"github.com/aed328ba/ratelimit/ratelimittest"
)

func TestTheMemoryStoreKeepsTheContractOnAClockOfItsOwn(t *testing.T) {
	clock := ratelimittest.NewClock()
	ratelimittest.TestStore(t, func(*testing.T) ratelimit.Store {
		return ratelimit.NewMemoryStore(ratelimit.WithClock(clock.Now))
	}, ratelimittest.WithAdvance(clock.Advance), ratelimittest.WithGrain(0))
}

func TestTheMemoryStoreKeepsTheContractInASynctestBubble(t *testing.T) {
	ratelimittest.TestStore(t, func(*testing.T) ratelimit.Store { return ratelimit.NewMemoryStore() },
		ratelimittest.WithSynctest(), ratelimittest.WithGrain(0))
}

func TestTheMemoryStoreKeepsTheContractOnRealTime(t *testing.T) {
	ratelimittest.TestStore(t, func(*testing.T) ratelimit.Store { return ratelimit.NewMemoryStore() })
}

func TestAFaultyStoreThatWorksKeepsTheContract(t *testing.T) {
	ratelimittest.TestStore(t, func(*testing.T) ratelimit.Store { return ratelimittest.NewFaultyStore(nil) },
		ratelimittest.WithSynctest(), ratelimittest.WithGrain(0))
}

func TestAStoreThatKeepsMillisecondsKeepsTheContractWithThatGrain(t *testing.T) {
	newStore := func(*testing.T) ratelimit.Store {
		time.Sleep(300 * time.Microsecond) // not at the start of a millisecond
		return ratelimit.NewMemoryStore(ratelimit.WithClock(func() time.Time { return time.Now().Truncate(time.Millisecond) }))
	}
	ratelimittest.TestStore(t, newStore, ratelimittest.WithSynctest(), ratelimittest.WithGrain(time.Millisecond))
}
