package ratelimit

import (
	"hash/maphash"
	"strings"
	"sync"
	"time"
)

// A denyCache remembers which keys Redis has denied, and what they asked for,
// so that it need not be asked again before their time. It can deny what Redis
// would deny, and nothing else.
type denyCache struct {
	shards   [16]denyShard
	perShard int
}

type denyShard struct {
	mu   sync.Mutex
	keys map[denyKey]*denial
}

// A denyKey names what was asked for: a raised limit is another policy.
type denyKey struct {
	policy *Policy
	key    string
}

type denial struct {
	cost    int
	asked   time.Time // when Redis was asked, last
	until   time.Time // when the cost will be admitted
	results []Result  // as they were when asked
	since   time.Time // when results were true
}

// denyRecheck is how often Redis is asked again about a denied key.
const denyRecheck = time.Second

func newDenyCache(maxKeys int) *denyCache {
	if maxKeys == 0 {
		return nil
	}
	c := &denyCache{}
	c.perShard = max(1, maxKeys/len(c.shards))
	return c
}

func (c *denyCache) shard(key string) *denyShard {
	return &c.shards[maphash.String(hashSeed, key)%uint64(len(c.shards))]
}

// answer sets results and reports true if the request is known to be denied.
// Of many that ask when it is time to ask Redis again, one is told to.
func (c *denyCache) answer(now time.Time, p *Policy, key string, cost int, results []Result) bool {
	sh := c.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	d := sh.keys[denyKey{p, key}]
	if d == nil || d.cost != cost {
		return false
	}
	if !now.Before(d.until) {
		delete(sh.keys, denyKey{p, key})
		return false
	}
	if now.Sub(d.asked) >= denyRecheck {
		d.asked = now
		return false
	}
	age := now.Sub(d.since)
	for i, r := range d.results {
		r.ResetAfter = max(0, r.ResetAfter-age)
		if !r.Allowed {
			r.RetryAfter = max(1, r.RetryAfter-age)
		}
		results[i] = r
	}
	return true
}

// note remembers a decision of Redis, or forgets the denial before it. Redis
// made it at some time between asked and answered: the key is denied from memory
// as if it was the former, and told to wait as if it was the latter.
func (c *denyCache) note(asked, answered time.Time, p *Policy, key string, cost int, results []Result) {
	var wait time.Duration
	for _, r := range results {
		wait = max(wait, r.RetryAfter)
	}
	if wait == 0 {
		// Admitted. A denial of a larger cost may still hold, but soon not.
		c.forget(p, key)
		return
	}
	sh := c.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.keys == nil {
		sh.keys = map[denyKey]*denial{}
	}
	id := denyKey{p, strings.Clone(key)} // the key itself would keep all that belongs to its request
	if len(sh.keys) >= c.perShard && sh.keys[id] == nil {
		sh.makeRoom(asked)
	}
	sh.keys[id] = &denial{cost: cost, asked: asked, since: answered, until: asked.Add(wait), results: append([]Result(nil), results...)}
}

// makeRoom drops a denial that is over, or else any: Redis denies it still.
func (sh *denyShard) makeRoom(now time.Time) {
	var victim denyKey
	seen := 0
	for id, d := range sh.keys {
		victim = id
		if seen++; seen == 8 || !now.Before(d.until) {
			break
		}
	}
	delete(sh.keys, victim)
}

// forget drops what is known of a key. Admissions, which are many, find nothing.
func (c *denyCache) forget(p *Policy, key string) {
	sh := c.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	delete(sh.keys, denyKey{p, key})
}
