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
	// refund reports whether there was anything to give back.
	refund(now, cost int64, sameWindow func(end int64) bool) bool
	// ahead reports whether something is in the future, because the clock was
	// set back.
	ahead(now int64) bool
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
			span: max(period, (burst*period+requests-1)/requests),
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
func (m *fixedModel) refund(_, cost int64, sameWindow func(int64) bool) bool {
	if m.count == 0 || !sameWindow(m.end) {
		return false
	}
	m.count = max(0, m.count-cost)
	return true
}
func (m *fixedModel) ahead(now int64) bool { return m.count > 0 && m.end > now+m.period }
func (m *fixedModel) clone() counter       { c := *m; return &c }

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

func (m *logModel) refund(_, cost int64, _ func(int64) bool) bool {
	given := min(cost, int64(len(m.times)))
	m.times = m.times[given:]
	return given > 0
}

func (m *logModel) ahead(now int64) bool {
	return slices.ContainsFunc(m.times, func(t int64) bool { return t > now })
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
func (m *counterModel) refund(_, cost int64, sameWindow func(int64) bool) bool {
	if m.count == 0 || !sameWindow(m.start+2*m.period) {
		return false
	}
	m.count = max(0, m.count-cost)
	return true
}
func (m *counterModel) ahead(now int64) bool { return m.count+m.before > 0 && m.start > now }
func (m *counterModel) clone() counter       { c := *m; return &c }

// bucketModel: a bucket of burst tokens that refills at rate, as the textbook
// has it; the package has GCRA. However far the clock is set back, the bucket is
// full again after span.
type bucketModel struct {
	burst, rate, tokens *big.Rat
	last, span          int64
}

func (m *bucketModel) flow(now int64) *big.Rat {
	level := new(big.Rat).Mul(big.NewRat(now-m.last, 1), m.rate)
	return level.Add(level, m.tokens)
}

func (m *bucketModel) level(now int64) *big.Rat {
	level := m.flow(now)
	if level.Cmp(m.burst) > 0 {
		level.Set(m.burst)
	}
	if lowest := m.lowest(); level.Cmp(lowest) < 0 {
		level.Set(lowest)
	}
	return level
}

func (m *bucketModel) lowest() *big.Rat {
	lowest := new(big.Rat).Mul(big.NewRat(m.span, 1), m.rate)
	return lowest.Sub(m.burst, lowest)
}
func (m *bucketModel) look(now int64)            { m.tokens, m.last = m.level(now), now }
func (m *bucketModel) fits(now, cost int64) bool { return m.level(now).Cmp(big.NewRat(cost, 1)) >= 0 }

func (m *bucketModel) consume(_, cost int64) {
	m.tokens = new(big.Rat).Sub(m.tokens, big.NewRat(cost, 1))
}

func (m *bucketModel) refund(now, cost int64, _ func(int64) bool) bool {
	if m.tokens.Cmp(m.burst) == 0 {
		return false
	}
	m.tokens = new(big.Rat).Add(m.tokens, big.NewRat(cost, 1))
	m.tokens = m.level(now)
	return true
}
func (m *bucketModel) ahead(now int64) bool { return m.flow(now).Cmp(m.lowest()) < 0 }
func (m *bucketModel) clone() counter       { c := *m; return &c }

// A model is a whole store of counters.
type model struct {
	tick     time.Duration
	policy   *ratelimit.Policy
	counters map[string][]counter // of a key, one for each limit; nil where nothing is known

	// Redis writes down what was admitted or given back, and that the clock was
	// set back, but not what time alone has done to a counter.
	redis bool
}

func newModel(p *ratelimit.Policy, tick time.Duration) *model {
	return &model{tick: tick, policy: p, counters: map[string][]counter{}}
}

func newRedisModel(p *ratelimit.Policy) *model {
	m := newModel(p, time.Microsecond)
	m.redis = true
	return m
}

// at returns the counters of key at now. Those in Redis, unless they are logs,
// are copies: they have to be kept to be known.
func (m *model) at(key string, now int64) []counter {
	counters := make([]counter, len(m.policy.Limits()))
	copy(counters, m.counters[key])
	for i, l := range m.policy.Limits() {
		c := counters[i]
		if c == nil {
			c = newCounter(m.policy.Algorithm(), l, m.tick)
			if b, ok := c.(*bucketModel); ok {
				b.last = now
			}
		} else if _, isLog := c.(*logModel); m.redis && !isLog && !c.ahead(now) {
			c = c.clone()
		}
		c.look(now)
		counters[i] = c
	}
	return counters
}

// keep writes down counter i of key.
func (m *model) keep(key string, i int, c counter) {
	if m.counters[key] == nil {
		m.counters[key] = make([]counter, len(m.policy.Limits()))
	}
	m.counters[key][i] = c
}

// expire forgets counter i of key, whose entry is not in Redis any more. It
// reports whether the full quota was there at now anyway.
func (m *model) expire(key string, i int, now int64) bool {
	counters := m.counters[key]
	if counters == nil || counters[i] == nil {
		return true
	}
	c := counters[i].clone()
	c.look(now)
	counters[i] = nil
	return c.fits(now, m.quota(i))
}

func (m *model) take(key string, now, cost int64) []ratelimit.Result {
	counters := m.at(key, now)
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
		if all || !m.redis {
			m.keep(key, i, c)
		}
		results[i] = m.describe(c, i, now, cost, fits[i])
	}
	return results
}

func (m *model) peek(key string, now int64) []ratelimit.Result {
	counters := m.at(key, now)
	results := make([]ratelimit.Result, len(counters))
	for i, c := range counters {
		results[i] = m.describe(c, i, now, 1, c.fits(now, 1))
	}
	return results
}

func (m *model) refund(key string, now, cost int64, left []time.Duration) {
	for i, c := range m.at(key, now) {
		if left != nil && left[i] <= 0 {
			continue
		}
		if c.refund(now, cost, func(end int64) bool {
			return left == nil || time.Duration(end-now)*m.tick <= left[i]
		}) {
			m.keep(key, i, c)
		}
	}
}

func (m *model) reset(key string) { delete(m.counters, key) }

func (m *model) quota(i int) int64 {
	limit := m.policy.Limits()[i]
	if m.policy.Algorithm() == ratelimit.TokenBucket && limit.Burst > 0 {
		return int64(limit.Burst)
	}
	return int64(limit.Requests)
}

// describe finds the numbers of a result by asking what would be admitted.
func (m *model) describe(c counter, i int, now, cost int64, allowed bool) ratelimit.Result {
	limit, quota := m.policy.Limits()[i], m.quota(i)
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
