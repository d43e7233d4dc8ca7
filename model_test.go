package ratelimit_test

import (
	"math/big"
	"slices"
	"sort"
	"time"

	"github.com/aed328ba/ratelimit"
)

// The reference model: each algorithm as its definition has it, without the
// formulas of the package. It only knows whether a cost fits at a given time;
// everything else that is reported follows from that by search. All times are
// in ticks since some start.

// A counter is what one limit remembers of one key.
type counter interface {
	// look brings the counter to now, which may be earlier than before: what
	// is in the future then is taken as now.
	look(now int64)
	// fits reports whether cost would be admitted at now or later, at a
	// counter that is not touched before then.
	fits(now, cost int64) bool
	consume(now, cost int64)
	refund(now, cost int64, sameWindow func(end int64) bool)
	clone() counter
}

func newCounter(a ratelimit.Algorithm, l ratelimit.Limit, tick time.Duration) counter {
	period := int64((l.Period + time.Millisecond - 1).Truncate(time.Millisecond) / tick)
	requests := int64(l.Requests)
	switch a {
	case ratelimit.FixedWindow:
		return &fixedModel{limit: requests, period: period}
	case ratelimit.SlidingWindowLog:
		return &logModel{limit: requests, period: period}
	case ratelimit.SlidingWindowCounter:
		return &counterModel{limit: requests, period: period}
	default:
		burst := int64(l.Burst)
		if burst == 0 {
			burst = requests
		}
		return &bucketModel{
			burst: big.NewRat(burst, 1), rate: big.NewRat(requests, period), tokens: big.NewRat(burst, 1),
		}
	}
}

// fixedModel: a window opens with the first request and counts up to the limit.
type fixedModel struct{ limit, period, end, count int64 }

func (m *fixedModel) look(now int64) {
	if now >= m.end {
		m.count = 0
	}
	if m.count == 0 {
		m.end = now + m.period
	}
	m.end = min(m.end, now+m.period)
}

func (m *fixedModel) fits(now, cost int64) bool {
	return now >= m.end && cost <= m.limit || m.count+cost <= m.limit
}
func (m *fixedModel) consume(_, cost int64) { m.count += cost }
func (m *fixedModel) refund(_, cost int64, sameWindow func(int64) bool) {
	if sameWindow(m.end) {
		m.count = max(0, m.count-cost)
	}
}
func (m *fixedModel) clone() counter { c := *m; return &c }

// logModel: at most limit entries in (now-period, now].
type logModel struct {
	limit, period int64
	times         []int64
}

func (m *logModel) live(now int64) (n int64) {
	for _, t := range m.times {
		if t > now-m.period {
			n++
		}
	}
	return n
}

func (m *logModel) look(now int64) {
	for i, t := range m.times {
		m.times[i] = min(t, now)
	}
	m.times = slices.DeleteFunc(m.times, func(t int64) bool { return t <= now-m.period })
}
func (m *logModel) fits(now, cost int64) bool { return m.live(now)+cost <= m.limit }
func (m *logModel) consume(now, cost int64) {
	for range cost {
		m.times = append(m.times, now)
	}
}

func (m *logModel) refund(_, cost int64, _ func(int64) bool) {
	m.times = m.times[min(cost, int64(len(m.times))):]
}
func (m *logModel) clone() counter { c := *m; c.times = slices.Clone(m.times); return &c }

// counterModel: the count of this window, and that of the one before as far as
// the sliding window still covers it.
type counterModel struct{ limit, period, start, count, before int64 }

func (m *counterModel) look(now int64) {
	for m.count+m.before > 0 && now-m.start >= m.period {
		m.start, m.before, m.count = m.start+m.period, m.count, 0
	}
	if m.count+m.before == 0 {
		m.start = now
	}
	m.start = min(m.start, now)
}

func (m *counterModel) fits(now, cost int64) bool {
	c := *m
	c.look(now)
	weight := new(big.Rat).Mul(big.NewRat(c.before, 1), big.NewRat(c.period-(now-c.start), c.period))
	return weight.Add(weight, big.NewRat(c.count+cost, 1)).Cmp(big.NewRat(c.limit, 1)) <= 0
}
func (m *counterModel) consume(_, cost int64) { m.count += cost }
func (m *counterModel) refund(_, cost int64, sameWindow func(int64) bool) {
	if sameWindow(m.start + 2*m.period) {
		m.count = max(0, m.count-cost)
	}
}
func (m *counterModel) clone() counter { c := *m; return &c }

// bucketModel: a bucket of burst tokens that refills at rate, as the textbook
// has it; the package has GCRA.
type bucketModel struct {
	burst, rate, tokens *big.Rat
	last                int64
}

func (m *bucketModel) level(now int64) *big.Rat {
	level := new(big.Rat).Mul(big.NewRat(now-m.last, 1), m.rate)
	level.Add(level, m.tokens)
	if level.Cmp(m.burst) > 0 {
		level.Set(m.burst)
	}
	if level.Sign() < 0 {
		level.SetInt64(0)
	}
	return level
}
func (m *bucketModel) look(now int64)            { m.tokens, m.last = m.level(now), now }
func (m *bucketModel) fits(now, cost int64) bool { return m.level(now).Cmp(big.NewRat(cost, 1)) >= 0 }

func (m *bucketModel) consume(_, cost int64) {
	m.tokens = new(big.Rat).Sub(m.tokens, big.NewRat(cost, 1))
}

func (m *bucketModel) refund(now, cost int64, _ func(int64) bool) {
	m.tokens = new(big.Rat).Add(m.tokens, big.NewRat(cost, 1))
	m.tokens = m.level(now)
}
func (m *bucketModel) clone() counter { c := *m; return &c }

// A model is a whole store of counters.
type model struct {
	tick     time.Duration
	policy   *ratelimit.Policy
	counters map[string][]counter // of a key, one for each limit
}

func newModel(p *ratelimit.Policy, tick time.Duration) *model {
	return &model{tick: tick, policy: p, counters: map[string][]counter{}}
}

// of returns the counters of key at now: new ones, which nobody has stored yet,
// where it was never seen.
func (m *model) of(key string, now int64) []counter {
	counters := m.counters[key]
	if counters == nil {
		for _, l := range m.policy.Limits() {
			c := newCounter(m.policy.Algorithm(), l, m.tick)
			if b, ok := c.(*bucketModel); ok {
				b.last = now
			}
			counters = append(counters, c)
		}
	}
	for _, c := range counters {
		c.look(now)
	}
	return counters
}

func (m *model) take(key string, now, cost int64) []ratelimit.Result {
	counters := m.of(key, now)
	m.counters[key] = counters
	fits := make([]bool, len(counters))
	all := true
	for i, c := range counters {
		fits[i] = c.fits(now, cost)
		all = all && fits[i]
	}
	results := make([]ratelimit.Result, len(counters))
	for i, c := range counters {
		if all {
			c.consume(now, cost)
		}
		results[i] = m.describe(c, i, now, cost, fits[i])
	}
	return results
}

func (m *model) peek(key string, now int64) []ratelimit.Result {
	counters := m.of(key, now)
	results := make([]ratelimit.Result, len(counters))
	for i, c := range counters {
		results[i] = m.describe(c, i, now, 1, c.fits(now, 1))
	}
	return results
}

func (m *model) refund(key string, now, cost int64, left []time.Duration) {
	for i, c := range m.of(key, now) {
		if left != nil && left[i] <= 0 {
			continue
		}
		c.refund(now, cost, func(end int64) bool {
			return left == nil || time.Duration(end-now)*m.tick <= left[i]
		})
	}
}

func (m *model) reset(key string) { delete(m.counters, key) }

// describe finds the numbers of a result by asking what would be admitted.
func (m *model) describe(c counter, i int, now, cost int64, allowed bool) ratelimit.Result {
	limit := m.policy.Limits()[i]
	quota := int64(limit.Requests)
	if m.policy.Algorithm() == ratelimit.TokenBucket && limit.Burst > 0 {
		quota = int64(limit.Burst)
	}
	// The most that fits, and the soonest that something fits.
	most := func() int64 {
		return int64(sort.Search(int(quota), func(n int) bool { return !c.clone().fits(now, int64(n)+1) }))
	}
	soonest := func(cost int64) time.Duration {
		horizon := int64(400*24*time.Hour/m.tick) * 2
		return time.Duration(sort.Search(int(horizon), func(d int) bool { return c.clone().fits(now+int64(d), cost) })) * m.tick
	}
	r := ratelimit.Result{Allowed: allowed, Limit: limit, Remaining: int(most()), ResetAfter: soonest(quota)}
	if !allowed {
		r.RetryAfter = soonest(cost)
	}
	return r
}
