package ratelimit

import (
	"math"
	"strings"
	"sync"
)

// A shard is one lock of a [MemoryStore] and the entries behind it: a dense
// array, which sweeping and eviction walk through a few entries at a time, and
// a hash index of positions in it, open addressed with linear probing. A Go
// map would hash every key a second time, could not be walked in steps, and
// would keep its memory for ever.
type shard struct {
	// What every decision touches, in one cache line.
	mu      sync.Mutex
	index   []uint64 // 0: free; else the entry's tag, and its position + 1
	entries []entry
	calls   uint32 // of Take, to tell when to sweep
	hand    uint32 // where the next walk begins

	// stuckUntil is when the first of the entries stops being denied, once
	// eviction has found that all of them are.
	stuckUntil int64

	_ [56]byte // to two cache lines, so that neighbours do not share one
}

// An entry is what one budget remembers of one key, in one cache line: an
// ordinary key stands in it, a long one behind it.
type entry struct {
	budget  *budget
	more    *more
	at      int64
	n, prev uint32 // neither is beyond maxRequests
	tag     uint32 // the upper half of the key's hash: its place in the index
	length  uint8  // of the key in inline, or keyElsewhere; above that, see mark
	inline  [inlineKey]byte
}

// more is what an entry has no room for.
type more struct {
	key string
	log ring
}

const (
	inlineKey    = 27 // what an IPv6 network has at most
	lengthBits   = 5
	keyElsewhere = 1<<lengthBits - 1
)

func newEntry(hash uint64, key string, b *budget, now int64) entry {
	e := entry{tag: tagOf(hash), budget: b, at: fresh(now).at}
	if len(key) <= inlineKey {
		e.length = uint8(len(key))
		copy(e.inline[:], key)
	} else {
		e.length = keyElsewhere
		e.more = &more{key: strings.Clone(key)}
	}
	if b.algorithm == SlidingWindowLog && e.more == nil {
		e.more = &more{}
	}
	return e
}

func tagOf(hash uint64) uint32 { return uint32(hash >> 32) }

// is reports whether e is of key.
func (e *entry) is(key string) bool {
	length := int(e.length & keyElsewhere)
	if length == keyElsewhere {
		return e.more.key == key
	}
	return len(key) == length && string(e.inline[:length]) == key
}

// mark remembers that a cost of more than 1 was denied, until as much is
// admitted: in sevenths of the quota, rounded up.
func (e *entry) mark(b *budget, cost int64, allowed bool) {
	marked := e.length >> lengthBits
	if cost == 1 && (!allowed || marked == 0) {
		return
	}
	sevenths := uint8((7*cost + b.quota - 1) / b.quota)
	switch {
	case !allowed:
		marked = max(marked, sevenths)
	case sevenths >= marked:
		marked = 0
	}
	e.length = marked<<lengthBits | e.length&keyElsewhere
}

// needs is the quota that e must have for nothing to be denied.
func (e *entry) needs() int64 {
	return max(1, (int64(e.length>>lengthBits)*e.budget.quota+6)/7)
}

func (e *entry) load() state {
	st := state{at: e.at, n: int64(e.n), prev: int64(e.prev)}
	if e.more != nil {
		st.log = &e.more.log
	}
	return st
}

func (e *entry) save(st state) { e.at, e.n, e.prev = st.at, uint32(st.n), uint32(st.prev) }

const notStuck = math.MinInt64

// minEntries is where a shard begins and below which it does not shrink.
const minEntries = 8

// adopt makes b the budget of e: the same one but perhaps for the number of
// requests, which may change while the application runs.
func (e *entry) adopt(b *budget) {
	if e.budget == b {
		return
	}
	if b.algorithm == TokenBucket && e.budget.requests != b.requests {
		// The fraction is in parts of the old number: give it up.
		e.at += roundUp(int64(e.n))
		e.n = 0
	}
	e.budget = b
}

// find returns the position of the entry of key under b, or -1.
func (sh *shard) find(hash uint64, key string, b *budget) int {
	if len(sh.index) == 0 {
		return -1
	}
	tag, mask := tagOf(hash), uint32(len(sh.index)-1)
	for i := tag & mask; ; i = (i + 1) & mask {
		slot := sh.index[i]
		if slot == 0 {
			return -1
		}
		if uint32(slot>>32) != tag {
			continue
		}
		position := int(uint32(slot)) - 1
		e := &sh.entries[position]
		if e.is(key) && e.budget.same(b) {
			return position
		}
	}
}

// findAll sets found to the positions of key's entries under each budget. It
// reports false if any of them is missing.
func (sh *shard) findAll(hash uint64, key string, budgets []budget, found *[maxLimits]int) bool {
	for i := range budgets {
		if found[i] = sh.find(hash, key, &budgets[i]); found[i] < 0 {
			return false
		}
	}
	return true
}

func (sh *shard) insert(e entry) {
	if (len(sh.entries)+1)*4 > len(sh.index)*3 {
		sh.reindex(max(2*minEntries, 2*len(sh.index)))
	}
	sh.entries = append(sh.entries, e)
	sh.point(e.tag, len(sh.entries)-1)
	sh.stuckUntil = notStuck
}

// reindex makes the index anew with the given size, a power of two.
func (sh *shard) reindex(size int) {
	sh.index = make([]uint64, size)
	for i := range sh.entries {
		sh.point(sh.entries[i].tag, i)
	}
}

// point puts the entry at position into the index.
func (sh *shard) point(tag uint32, position int) {
	mask := uint32(len(sh.index) - 1)
	i := tag & mask
	for sh.index[i] != 0 {
		i = (i + 1) & mask
	}
	sh.index[i] = uint64(tag)<<32 | uint64(position+1)
}

// slotOf returns where the index holds the entry at position.
func (sh *shard) slotOf(position int) uint32 {
	mask := uint32(len(sh.index) - 1)
	i := sh.entries[position].tag & mask
	for uint32(sh.index[i]) != uint32(position+1) {
		i = (i + 1) & mask
	}
	return i
}

// remove takes the entry at position out. The last one takes its place.
func (sh *shard) remove(position int) {
	sh.unindex(sh.slotOf(position))
	last := len(sh.entries) - 1
	if position != last {
		i := sh.slotOf(last)
		sh.entries[position] = sh.entries[last]
		sh.index[i] = sh.index[i]>>32<<32 | uint64(position+1)
	}
	sh.entries[last] = entry{}
	sh.entries = sh.entries[:last]
	sh.stuckUntil = notStuck

	if size := len(sh.index) / 2; size >= 2*minEntries && last*4 <= size {
		sh.entries = append(make([]entry, 0, max(minEntries, last)), sh.entries...)
		sh.reindex(size)
	}
}

// unindex frees slot i and moves up what was displaced past it, so that
// probing never has to pass over the removed.
func (sh *shard) unindex(i uint32) {
	mask := uint32(len(sh.index) - 1)
	for j := (i + 1) & mask; sh.index[j] != 0; j = (j + 1) & mask {
		home := uint32(sh.index[j]>>32) & mask
		if (j-home)&mask >= (j-i)&mask { // its way from home leads over i
			sh.index[i] = sh.index[j]
			i = j
		}
	}
	sh.index[i] = 0
}

// evictSample is among how many entries the one to drop is chosen.
const evictSample = 32

// evict drops one entry, but none of the key that needs the place: one that
// has expired, else of a sample the one furthest from its limit. Where every
// other entry is being denied it reports false, and when the first of them is
// done.
func (sh *shard) evict(now int64, hash uint64, key string) (freed bool, soonest int64) {
	if now < sh.stuckUntil {
		return false, sh.stuckUntil
	}
	best, least, own := -1, math.Inf(1), false
	soonest = math.MaxInt64
	for i := range sh.entries {
		if i >= evictSample && best >= 0 {
			break
		}
		position := sh.step()
		e := &sh.entries[position]
		if e.tag == tagOf(hash) && e.is(key) {
			own = true
			continue
		}
		st := e.budget.settle(e.load(), now)
		remaining := e.budget.remaining(st, now)
		if e.budget.resetAfter(st, now) == 0 {
			sh.remove(position)
			return true, 0
		}
		if needs := e.needs(); remaining < needs {
			soonest = min(soonest, now+e.budget.wait(st, now, needs))
			continue
		}
		if used := 1 - float64(remaining)/float64(e.budget.quota); used < least {
			best, least = position, used
		}
	}
	if best < 0 {
		if !own { // whose entries may be dropped for another key
			sh.stuckUntil = soonest
		}
		return false, soonest
	}
	sh.remove(best)
	return true, 0
}

// step moves the hand on and returns the position it was at.
func (sh *shard) step() int {
	if int(sh.hand) >= len(sh.entries) {
		sh.hand = 0
	}
	sh.hand++
	return int(sh.hand) - 1
}

// removeExpired looks at the next n entries and removes those that have their
// full quota again. It returns how many those were.
func (sh *shard) removeExpired(now int64, n int) (removed int) {
	for range min(n, len(sh.entries)) {
		position := sh.step()
		e := &sh.entries[position]
		if b := e.budget; b.resetAfter(b.settle(e.load(), now), now) == 0 {
			sh.remove(position)
			sh.hand-- // another entry has taken its place
			removed++
		}
	}
	return removed
}
