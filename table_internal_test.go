package ratelimit

import (
	"hash/maphash"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestAShardFindsWhatAMapWouldHold(t *testing.T) {
	b := newBudget("n", FixedWindow, PerSecond(1), time.Nanosecond)
	rapid.Check(t, func(t *rapid.T) {
		var sh shard
		held := map[string]int64{}
		// Few distinct hashes, so that probing runs into one another and wraps.
		hashes := rapid.Uint64Range(1, 200).Draw(t, "hashes")
		hash := func(key string) uint64 { return maphash.String(hashSeed, key) % hashes * 0x9e3779b97f4a7c15 }
		for step := range rapid.IntRange(1, 300).Draw(t, "steps") {
			key := strings.Repeat("k", rapid.SampledFrom([]int{0, 20, 23, 24, 25, 60}).Draw(t, "length")) + strconv.Itoa(rapid.IntRange(0, 80).Draw(t, "key"))
			position := sh.find(hash(key), key, &b)
			if value, ok := held[key]; ok {
				require.Equal(t, value, sh.entries[position].at)
				if rapid.Bool().Draw(t, "remove") {
					sh.remove(position)
					delete(held, key)
				}
			} else {
				require.Equal(t, -1, position)
				sh.insert(newEntry(hash(key), key, &b, int64(step)))
				held[key] = int64(step)
			}
			require.Len(t, sh.entries, len(held))
		}
		for key, value := range held {
			require.Equal(t, value, sh.entries[sh.find(hash(key), key, &b)].at)
		}
	})
}

func TestAShardThatSparedAKeyItsOwnEntryDropsThatForAnother(t *testing.T) {
	b := newBudget("n", FixedWindow, PerSecond(1), time.Nanosecond)
	sh := shard{stuckUntil: notStuck}
	sh.insert(newEntry(1<<40, "a", &b, 0))
	freed, _ := sh.evict(0, 1<<40, "a")
	require.False(t, freed, "a needs what it has")
	freed, _ = sh.evict(0, 2<<40, "b")
	require.True(t, freed)
}

func TestAShardShrinksAsItEmpties(t *testing.T) {
	b := newBudget("n", FixedWindow, PerSecond(1), time.Nanosecond)
	var sh shard
	for i := range 10_000 {
		sh.insert(newEntry(uint64(i)*0x9e3779b97f4a7c15, strconv.Itoa(i), &b, 0))
	}
	for len(sh.entries) > 1 {
		sh.remove(len(sh.entries) / 2)
	}
	require.LessOrEqual(t, cap(sh.entries), 2*minEntries)
	require.LessOrEqual(t, len(sh.index), 4*minEntries)
}

func TestALogShrinksAsItEmpties(t *testing.T) {
	var r ring
	r.push(0, 10_000)
	r.push(1, 3)
	r.settle(100, 100)
	require.Equal(t, []int64{1, 1, 1}, []int64{r.at(0), r.at(1), r.at(2)})
	require.Len(t, r.times, 8)
	r.settle(101, 100)
	require.Len(t, r.times, minRing)
	r.push(102, 5)
	require.EqualValues(t, 5, r.len())
}

// white-box: the settings of the arithmetic that no Limit can reach from
// outside in a test's time.
func TestTheArithmeticHoldsAtTheBoundsOfALimit(t *testing.T) {
	for a := range algorithmCount {
		for _, l := range []Limit{
			{Requests: maxRequests, Period: maxPeriod},
			{Requests: maxRequests, Period: minPeriod},
			{Requests: 1, Period: maxPeriod},
			{Requests: 1, Period: minPeriod},
		} {
			for _, tick := range []time.Duration{time.Nanosecond, time.Microsecond} {
				b := newBudget("n", a, l, tick)
				now := int64(1_900_000_000) * int64(time.Second/tick)
				st := b.settle(fresh(now), now)
				require.Equal(t, b.quota, b.remaining(st, now))
				require.Zero(t, b.resetAfter(st, now))
				if a == SlidingWindowLog {
					continue // holds its entries: bounded by maxLogRequests
				}
				st, ok := b.spend(st, now, b.quota)
				require.True(t, ok, "%v %v", a, l)
				require.Zero(t, b.remaining(st, now))
				require.GreaterOrEqual(t, b.resetAfter(st, now), b.period)
				_, ok = b.spend(st, now, 1)
				require.False(t, ok)
				for _, cost := range []int64{1, b.quota} {
					wait := b.wait(st, now, cost)
					_, ok = b.spend(b.settle(st, now+wait), now+wait, cost)
					require.True(t, ok, "%v %v: admitted after the wait", a, l)
					_, ok = b.spend(b.settle(st, now+wait-1), now+wait-1, cost)
					require.False(t, ok, "%v %v: and not before", a, l)
				}
			}
		}
	}
}
