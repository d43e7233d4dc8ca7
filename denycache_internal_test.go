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
		c.note(now, now, p, strconv.Itoa(i), 1, []Result{{RetryAfter: time.Minute}})
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

func TestADenialHoldsFromTheQuestionAndItsWaitFromTheAnswer(t *testing.T) {
	c, p, asked := newDenyCache(64), new(Policy), time.Now()
	answered := asked.Add(80 * time.Millisecond) // Redis decided at some time between
	c.note(asked, answered, p, "k", 1, []Result{{RetryAfter: 500 * time.Millisecond}})
	var r [1]Result
	assert.True(t, c.answer(answered, p, "k", 1, r[:]))
	assert.Equal(t, 500*time.Millisecond, r[0].RetryAfter, "never shorter than Redis meant")
	assert.False(t, c.answer(asked.Add(500*time.Millisecond), p, "k", 1, r[:]), "never denied for longer")
}
