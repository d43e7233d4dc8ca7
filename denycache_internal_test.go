package ratelimit

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestTheDenyCacheNeverHoldsMoreThanItsBound(t *testing.T) {
	const bound = 64
	c, p, now := newDenyCache(bound), new(Policy), time.Now()
	for i := range 100 * bound {
		c.note(now, p, strconv.Itoa(i), 1, []Result{{RetryAfter: time.Minute}})
	}
	held := 0
	for i := range c.shards {
		held += len(c.shards[i].keys)
	}
	assert.Equal(t, bound, held)
}

func TestADenialThatIsOverMakesRoomBeforeOneThatHolds(t *testing.T) {
	now := time.Now()
	sh := denyShard{keys: map[denyKey]*denial{}}
	for i := range 8 {
		sh.keys[denyKey{key: strconv.Itoa(i)}] = &denial{until: now.Add(time.Duration(i))} // the first is over
	}
	sh.makeRoom(now)
	assert.Len(t, sh.keys, 7)
	assert.NotContains(t, sh.keys, denyKey{key: "0"})
}
