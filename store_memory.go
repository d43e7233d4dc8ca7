package ratelimit

import (
	"context"
	"fmt"
	"hash/maphash"
	"math"
	"math/bits"
	"sync/atomic"
	"time"
)

// A MemoryStore is a [Store] in the memory of one process. It starts no
// goroutine and needs no closing: ordinary calls sweep away what has expired,
// a few keys at a time.
type MemoryStore struct {
	Claims
	clock   func() time.Time // nil: the real one
	base    time.Time        // all times are in nanoseconds since
	maxKeys int64

	held   atomic.Int64 // entries in all shards
	shards []shard

	sweepNext  atomic.Uint32 // the shard that is swept next
	sweepEvery atomic.Uint32 // calls of a shard between two sweeps, less one
}

// A MemoryOption is a setting of [NewMemoryStore].
type MemoryOption interface{ applyMemory(*MemoryStore) }

type memoryOption func(*MemoryStore)

func (o memoryOption) applyMemory(s *MemoryStore) { o(s) }

// DefaultMaxKeys is how many keys a [MemoryStore] holds unless [WithMaxKeys]
// says otherwise.
const DefaultMaxKeys = 1_000_000

// WithMaxKeys bounds a [MemoryStore] to n keys, each of which takes about 100
// bytes; of more than 27 characters, its length and 60 more; and under a
// [SlidingWindowLog] 60 more and 8 to 16 for each request, at most 64 after a
// busier time. A key under a policy of several limits counts once for each. The
// default is [DefaultMaxKeys]; n below 1 is refused by [NewLimiter].
//
// When the store is full, a new key takes the place of one that has its full
// quota again, else of one far from its limit. A key that is being denied is
// never dropped: were the store full of those alone, a new key would be denied
// until the first of them is done.
func WithMaxKeys(n int) MemoryOption {
	return memoryOption(func(s *MemoryStore) { s.maxKeys = int64(n) })
}

// NewMemoryStore returns a store for one instance of an application. Several
// limiters may share it, under names of their own.
func NewMemoryStore(opts ...MemoryOption) *MemoryStore {
	s := &MemoryStore{maxKeys: DefaultMaxKeys}
	for _, o := range opts {
		if o != nil {
			o.applyMemory(s)
		}
	}
	s.base = time.Now()
	if s.clock != nil {
		s.base = s.clock()
	}
	s.shards = make([]shard, shardCount(s.maxKeys))
	for i := range s.shards {
		s.shards[i].stuckUntil = notStuck
	}
	s.sweepEvery.Store(sweepSeldom)
	return s
}

func (s *MemoryStore) validate() error {
	if s.maxKeys < 1 {
		return fmt.Errorf("ratelimit: WithMaxKeys: %d keys cannot hold anybody's count; use at least 1 (default %d)", s.maxKeys, DefaultMaxKeys)
	}
	return nil
}

// shardCount gives each shard enough keys that the one furthest from its limit
// is a good one to drop, and many cores a lock each.
func shardCount(maxKeys int64) int {
	const perShard, most = 64, 256
	n := max(1, min(most, maxKeys/perShard))
	return 1 << (bits.Len64(uint64(n)) - 1)
}

// Len returns how many keys the store holds, those among them that expired and
// were not yet swept away.
func (s *MemoryStore) Len() int { return int(s.held.Load()) }

func (s *MemoryStore) now() int64 {
	if s.clock != nil {
		return int64(s.clock().Sub(s.base))
	}
	return int64(time.Since(s.base))
}

// shardOf returns where the counts of key are, and its hash. All limits of a
// policy are in one shard, so that one lock holds them together.
func (s *MemoryStore) shardOf(p *Policy, key string) (*shard, uint64) {
	hash := maphash.String(hashSeed, key) ^ p.memory[0].hash
	return &s.shards[hash&uint64(len(s.shards)-1)], hash
}

// Take implements [Store]. It never fails.
func (s *MemoryStore) Take(_ context.Context, p *Policy, key string, cost int, results []Result) error {
	if len(p.memory) == 1 {
		s.takeOne(p, key, int64(cost), &results[0])
	} else {
		s.takeAll(p, key, int64(cost), results)
	}
	return nil
}

// takeOne is Take for one limit, which is what most policies have.
func (s *MemoryStore) takeOne(p *Policy, key string, cost int64, r *Result) {
	b := &p.memory[0]
	sh, hash := s.shardOf(p, key)
	sh.mu.Lock()
	position := sh.find(hash, key, b)
	for position < 0 {
		if inserted, soonest := s.insertMissing(sh, hash, key, p.memory); !inserted {
			wait := soonest - s.now()
			sh.mu.Unlock()
			*r = denyNewcomer(b, wait)
			return
		}
		position = sh.find(hash, key, b)
	}
	e := &sh.entries[position]
	e.adopt(b)
	// The clock is read under the lock, so that the times of one key never run
	// backwards.
	now := s.now()
	st := b.settle(e.load(), now)
	after, fits := b.spend(st, now, cost)
	if fits {
		b.record(&after, now, cost)
		st = after
	}
	e.save(st)
	e.mark(b, cost, fits)
	b.report(r, st, now, cost, fits)
	s.unlock(sh)
}

// takeAll is Take for several limits, which hold together.
func (s *MemoryStore) takeAll(p *Policy, key string, cost int64, results []Result) {
	sh, hash := s.shardOf(p, key)
	sh.mu.Lock()
	var found [maxLimits]int
	for !sh.findAll(hash, key, p.memory, &found) {
		if inserted, soonest := s.insertMissing(sh, hash, key, p.memory); !inserted {
			for i := range results {
				results[i] = denyNewcomer(&p.memory[i], soonest-s.now())
			}
			sh.mu.Unlock()
			return
		}
	}
	now := s.now()
	allowed := true
	for i := range p.memory {
		b, e := &p.memory[i], &sh.entries[found[i]]
		e.adopt(b)
		st := b.settle(e.load(), now)
		e.save(st)
		_, fits := b.spend(st, now, cost)
		results[i].Allowed = fits
		allowed = allowed && fits
	}
	for i := range p.memory {
		b, e := &p.memory[i], &sh.entries[found[i]]
		st := e.load()
		if allowed {
			st, _ = b.spend(st, now, cost)
			b.record(&st, now, cost)
			e.save(st)
		}
		e.mark(b, cost, results[i].Allowed)
		b.report(&results[i], st, now, cost, results[i].Allowed)
	}
	s.unlock(sh)
}

// unlock ends a decision, and sweeps when it is time to.
func (s *MemoryStore) unlock(sh *shard) {
	sh.calls++
	sweep := sh.calls&s.sweepEvery.Load() == 0
	sh.mu.Unlock()
	if sweep {
		s.sweep()
	}
}

// Peek implements [Store]. It never fails.
func (s *MemoryStore) Peek(_ context.Context, p *Policy, key string, results []Result) error {
	sh, hash := s.shardOf(p, key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := s.now()
	for i := range p.memory {
		b := &p.memory[i]
		st := b.settle(fresh(now), now)
		if at := sh.find(hash, key, b); at >= 0 {
			e := &sh.entries[at]
			e.adopt(b)
			st = b.settle(e.load(), now)
			e.save(st)
		}
		_, fits := b.spend(st, now, 1)
		b.report(&results[i], st, now, 1, fits)
	}
	return nil
}

// Refund implements [Store]. It never fails.
func (s *MemoryStore) Refund(_ context.Context, p *Policy, key string, cost int, left []time.Duration) error {
	sh, hash := s.shardOf(p, key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := s.now()
	for i := range p.memory {
		b := &p.memory[i]
		if at := sh.find(hash, key, b); at >= 0 {
			e := &sh.entries[at]
			e.adopt(b)
			e.save(b.refund(b.settle(e.load(), now), now, int64(cost), leftOf(b, left, i)))
		}
	}
	sh.stuckUntil = notStuck
	return nil
}

// Reset implements [Store]. It never fails.
func (s *MemoryStore) Reset(_ context.Context, p *Policy, key string) error {
	sh, hash := s.shardOf(p, key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for i := range p.memory {
		if at := sh.find(hash, key, &p.memory[i]); at >= 0 {
			sh.remove(at)
			s.held.Add(-1)
		}
	}
	return nil
}

// insertMissing makes a place for each limit of a key that has none. It reports
// false, and when to try again, if that would take the place of somebody who is
// being denied. It is called with sh locked; where it has to look for a place
// in other shards it unlocks it meanwhile, so that no two are ever locked.
func (s *MemoryStore) insertMissing(sh *shard, hash uint64, key string, budgets []budget) (ok bool, soonest int64) {
	now := s.now()
	for i := range budgets {
		b := &budgets[i]
		if sh.find(hash, key, b) >= 0 {
			continue
		}
		if ok = s.reserve(); !ok {
			ok, soonest = sh.evict(now, hash, key)
		}
		if !ok {
			sh.mu.Unlock()
			freed, elsewhere := s.evictElsewhere(sh)
			sh.mu.Lock()
			return freed, min(soonest, elsewhere)
		}
		sh.insert(newEntry(hash, key, b, now))
	}
	return true, 0
}

// reserve takes one of the places that are free in the whole store.
func (s *MemoryStore) reserve() bool {
	for {
		held := s.held.Load()
		if held >= s.maxKeys {
			return false
		}
		if s.held.CompareAndSwap(held, held+1) {
			return true
		}
	}
}

// evictElsewhere frees a place in any shard but the one given, or says when it
// could.
func (s *MemoryStore) evictElsewhere(not *shard) (freed bool, soonest int64) {
	soonest = math.MaxInt64
	for i := range s.shards {
		sh := &s.shards[i]
		if sh == not {
			continue
		}
		sh.mu.Lock()
		freed, until := sh.evict(s.now(), 0, "")
		if freed {
			s.held.Add(-1)
		}
		sh.mu.Unlock()
		if freed {
			return true, 0
		}
		soonest = min(soonest, until)
	}
	return false, soonest
}

// denyNewcomer answers a key for which there will be no place for a while.
func denyNewcomer(b *budget, wait int64) Result {
	d := time.Duration(max(1, wait))
	return Result{Limit: b.limit, RetryAfter: d, ResetAfter: d}
}

// A sweep looks at sweepBatch entries of one shard. It comes with every 64th
// call of a shard; every 8th while it finds that many have expired.
const (
	sweepBatch  = 32
	sweepSeldom = 64 - 1
	sweepOften  = 8 - 1
)

// sweep removes some of what has expired from the shard whose turn it is. Each
// call may sweep any shard, so that one busy key is enough to free the memory
// of all the others.
func (s *MemoryStore) sweep() {
	sh := &s.shards[s.sweepNext.Add(1)&uint32(len(s.shards)-1)]
	if !sh.mu.TryLock() {
		return
	}
	// The clock again: an entry of this shard may be later than the decision.
	removed := sh.removeExpired(s.now(), sweepBatch)
	s.held.Add(int64(-removed)) // before the lock is free, or somebody finds a full store with room in it
	sh.mu.Unlock()
	every := uint32(sweepSeldom)
	if removed >= sweepBatch/4 {
		every = sweepOften
	}
	if s.sweepEvery.Load() != every {
		s.sweepEvery.Store(every)
	}
}
