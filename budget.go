package ratelimit

import (
	"hash/maphash"
	"math/bits"
	"time"
)

// A budget is one limit of a policy, prepared for counting: the arithmetic of
// the four algorithms, in whole ticks of time. The stores keep a [state] for
// each key and ask the budget what it means, so that each number users see has
// one definition, whichever store counted.
//
// A tick is a nanosecond in memory and a microsecond in Redis.
type budget struct {
	name      string
	algorithm Algorithm
	limit     Limit
	hash      uint64 // of name; a part of each key's hash in memory

	requests int64   // L
	quota    int64   // the most that can be admitted at once: L, or B of a token bucket
	period   int64   // W, in ticks
	capacity instant // B*W/L: how far the TAT of an admitted request is ahead of now
	span     int64   // W, or B*W/L if that is more: how far a TAT can be ahead; in ticks
	tick     time.Duration
}

// A state is what one budget remembers of one key.
//
//	FixedWindow           at: end of the window      n: admitted in it
//	SlidingWindowCounter  at: start of the window    n: admitted in it   prev: in the one before
//	TokenBucket           at: TAT, whole ticks       n: and its fraction, in 1/L of a tick
//	SlidingWindowLog      log: the times of what was admitted; or, of a log that is
//	                      elsewhere, n: how many, at: the newest, prev: the one
//	                      that has to go before the cost fits
type state struct {
	at, n, prev int64
	log         *ring
}

// An instant is a number of ticks with a fraction in 1/L of a tick, so that
// W/L needs no rounding.
type instant struct{ whole, fraction int64 }

// hashSeed keeps an attacker from choosing keys that fall into one shard.
var hashSeed = maphash.MakeSeed()

func newBudget(name string, algorithm Algorithm, limit Limit, tick time.Duration) budget {
	b := budget{
		name:      name,
		algorithm: algorithm,
		limit:     limit,
		hash:      maphash.String(hashSeed, name),
		requests:  int64(limit.Requests),
		quota:     int64(limit.Requests),
		period:    int64((wholeMilliseconds(limit.Period) + tick - 1) / tick),
		tick:      tick,
	}
	if algorithm == TokenBucket {
		b.quota = int64(limit.capacity())
		b.capacity = b.interval(b.quota)
		b.span = max(b.period, b.capacity.whole+roundUp(b.capacity.fraction))
	}
	return b
}

// redisTick is the unit of time for a limit in Redis: a microsecond, unless the
// products of a SlidingWindowCounter would be beyond what Lua's numbers hold.
func redisTick(algorithm Algorithm, limit Limit) time.Duration {
	if algorithm != SlidingWindowCounter {
		return time.Microsecond
	}
	for _, tick := range []time.Duration{time.Microsecond, time.Millisecond, time.Second} {
		if int64(limit.Requests) < 1<<53/(int64(limit.Period/tick)+1) {
			return tick
		}
	}
	return time.Minute
}

// wholeMilliseconds rounds a period up to what every store can keep.
func wholeMilliseconds(period time.Duration) time.Duration {
	return (period + time.Millisecond - 1) / time.Millisecond * time.Millisecond
}

// same reports whether b and o count together: the name, the algorithm and the
// period are the identity of a budget; the number of requests may change, and
// the burst as long as it is not above that. A larger one makes a budget of its
// own: only budgets of one span can tell a TAT of the future, which is there
// because the clock was set back, from one that another of them has written.
func (b *budget) same(o *budget) bool {
	return b == o || b.period == o.period && b.span == o.span && b.algorithm == o.algorithm && b.name == o.name
}

// interval returns cost*W/L, what cost adds to the TAT.
func (b *budget) interval(cost int64) instant {
	hi, lo := bits.Mul64(uint64(cost), uint64(b.period))
	whole, fraction := bits.Div64(hi, lo, uint64(b.requests))
	return instant{int64(whole), int64(fraction)}
}

// fresh is the state of a key never seen.
func fresh(now int64) state { return state{at: now} }

// settle brings st to now: a window that ended is closed, a bucket refills,
// and what lies in the future (the clock was set back) is taken as now.
// Nothing is consumed.
func (b *budget) settle(st state, now int64) state {
	switch b.algorithm {
	case FixedWindow:
		if st.n == 0 || now >= st.at {
			return state{at: now + b.period}
		}
		st.at = min(st.at, now+b.period)

	case SlidingWindowLog:
		if st.log != nil {
			st.log.settle(now, b.period)
			st.n = st.log.len()
		}

	case SlidingWindowCounter:
		switch elapsed := now - st.at; {
		case elapsed >= 2*b.period:
			return state{at: now}
		case elapsed >= b.period:
			st = state{at: st.at + b.period, prev: st.n}
		case elapsed < 0:
			st.at = now
		}
		if st.n == 0 && st.prev == 0 {
			return state{at: now}
		}

	case TokenBucket:
		if st.at < now {
			return state{at: now}
		}
		if latest := now + b.span; st.after(instant{latest, 0}) {
			return state{at: latest}
		}
	}
	return st
}

// emptyAt is the TAT of a bucket that is empty at now.
func (b *budget) emptyAt(now int64) instant {
	return instant{now + b.capacity.whole, b.capacity.fraction}
}

// after reports whether the TAT in st is later than i.
func (st state) after(i instant) bool {
	return st.at > i.whole || st.at == i.whole && st.n > i.fraction
}

// spend returns a settled st with cost consumed, and whether it fits. The log
// is not touched: that is left to record, once every limit has agreed.
func (b *budget) spend(st state, now, cost int64) (state, bool) {
	switch b.algorithm {
	case FixedWindow:
		st.n += cost
		return st, st.n <= b.quota

	case SlidingWindowLog:
		return st, st.n+cost <= b.quota

	case SlidingWindowCounter:
		// prev*(W-e) + (n+cost)*W <= L*W, in 128 bits
		st.n += cost
		free := b.quota - st.n
		return st, free >= 0 && !less(free, b.period, st.prev, b.period-(now-st.at))

	default: // TokenBucket
		st = b.addTAT(st, b.interval(cost))
		return st, !st.after(b.emptyAt(now))
	}
}

func (b *budget) addTAT(st state, i instant) state {
	st.at += i.whole
	st.n += i.fraction
	if st.n >= b.requests {
		st.n -= b.requests
		st.at++
	}
	return st
}

// record writes an admitted cost into the log, where there is one.
func (b *budget) record(st *state, now, cost int64) {
	if b.algorithm != SlidingWindowLog {
		return
	}
	st.log.push(now, cost)
	st.n = st.log.len()
}

// report sets r to what a settled st means to the client, who asked for cost.
// A Result is large: it is written once, where it is wanted.
func (b *budget) report(r *Result, st state, now, cost int64, allowed bool) {
	r.Allowed = allowed
	r.Limit = b.limit
	r.Remaining = int(max(0, b.remaining(st, now)))
	r.RetryAfter = 0
	r.ResetAfter = time.Duration(b.resetAfter(st, now)) * b.tick
	if !allowed {
		r.RetryAfter = time.Duration(b.wait(st, now, cost)) * b.tick
	}
}

// remaining is how much would be admitted now; it may be below 0 where the
// limit was lowered.
func (b *budget) remaining(st state, now int64) int64 {
	switch b.algorithm {
	case FixedWindow, SlidingWindowLog:
		return b.quota - st.n
	case SlidingWindowCounter:
		return b.quota - st.n - mulDivUp(st.prev, b.period-(now-st.at), b.period)
	default: // TokenBucket: floor((now + capacity - TAT) * L / W)
		free := b.emptyAt(now)
		free.whole -= st.at
		if free.fraction -= st.n; free.fraction < 0 {
			free.fraction += b.requests
			free.whole--
		}
		if free.whole < 0 { // used under a larger burst
			return 0
		}
		hi, lo := bits.Mul64(uint64(free.whole), uint64(b.requests))
		lo, carry := bits.Add64(lo, uint64(free.fraction), 0)
		q, _ := bits.Div64(hi+carry, lo, uint64(b.period))
		return int64(q)
	}
}

// resetAfter is how long until the key has its full quota again.
func (b *budget) resetAfter(st state, now int64) int64 {
	switch b.algorithm {
	case FixedWindow:
		if st.n == 0 {
			return 0
		}
		return st.at - now
	case SlidingWindowLog:
		switch {
		case st.n == 0:
			return 0
		case st.log != nil:
			return st.log.newest() + b.period - now
		}
		return st.at + b.period - now
	case SlidingWindowCounter:
		left := b.period - (now - st.at)
		switch {
		case st.n > 0:
			return left + b.period
		case st.prev > 0:
			return left
		}
		return 0
	default: // TokenBucket
		return st.at - now + roundUp(st.n)
	}
}

// wait is how long until cost, refused now, will be admitted if nothing else
// is meanwhile: the least number of ticks for which that is so.
func (b *budget) wait(st state, now, cost int64) int64 {
	switch b.algorithm {
	case FixedWindow:
		return st.at - now

	case SlidingWindowLog:
		if st.log != nil {
			return st.log.at(st.n+cost-b.quota-1) + b.period - now
		}
		return st.prev + b.period - now

	case SlidingWindowCounter:
		left := b.period - (now - st.at)
		if free := b.quota - st.n - cost; free >= 0 {
			return left - mulDiv(free, b.period, st.prev)
		}
		// Not in this window: the count of it must fade in the next one.
		return left + b.period - mulDiv(b.quota-cost, b.period, st.n)

	default: // TokenBucket
		st = b.addTAT(st, b.interval(cost))
		empty := b.emptyAt(now)
		return st.at - empty.whole + roundUp(st.n-empty.fraction)
	}
}

// anyDecision stands for "no decision in particular" in refund.
const anyDecision = -1

// leftOf returns what is left of the decision by the i-th limit, in ticks, as
// refund takes it.
func leftOf(b *budget, left []time.Duration, i int) int64 {
	if left == nil {
		return anyDecision
	}
	return max(0, int64(left[i]/b.tick))
}

// refund returns a settled st with cost given back, never above full.
//
// left is what was left, now, of the ResetAfter of the decision that consumed
// the cost, or anyDecision. It keeps a refund in the
// window it belongs to: the windows that count by number must still be the
// same one, and what slides or refills must not have done so already.
func (b *budget) refund(st state, now, cost, left int64) state {
	if left == 0 {
		return st
	}
	switch b.algorithm {
	case FixedWindow, SlidingWindowCounter:
		if left == anyDecision || b.resetAfter(st, now) <= left {
			st.n = max(0, st.n-cost)
		}
	case SlidingWindowLog:
		// The oldest go: whichever request is meant, those that stay expire
		// no sooner than they would without it.
		if st.log != nil {
			st.log.drop(min(cost, st.n))
			st.n = st.log.len()
		}
	case TokenBucket:
		i := b.interval(cost)
		st.at -= i.whole
		if st.n -= i.fraction; st.n < 0 {
			st.n += b.requests
			st.at--
		}
		if st.at < now {
			return state{at: now}
		}
	}
	return st
}

// less reports whether a*b < c*d. All are at least 0.
func less(a, b, c, d int64) bool {
	hi1, lo1 := bits.Mul64(uint64(a), uint64(b))
	hi2, lo2 := bits.Mul64(uint64(c), uint64(d))
	return hi1 < hi2 || hi1 == hi2 && lo1 < lo2
}

// mulDiv returns a*b/c, rounded down. All are at least 0, and a*b/c fits.
func mulDiv(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	q, _ := bits.Div64(hi, lo, uint64(c))
	return int64(q)
}

// mulDivUp returns a*b/c, rounded up.
func mulDivUp(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	q, r := bits.Div64(hi, lo, uint64(c))
	return int64(q) + roundUp(int64(r))
}

// roundUp returns 1 for a fraction that is left over, 0 for none.
func roundUp(fraction int64) int64 {
	if fraction > 0 {
		return 1
	}
	return 0
}

// A ring is a queue of times, oldest first, that grows and shrinks as it needs
// to.
type ring struct {
	times []int64 // its length is a power of two
	head  int
	count int
}

func (r *ring) len() int64 { return int64(r.count) }

func (r *ring) slot(i int) *int64 { return &r.times[(r.head+i)&(len(r.times)-1)] }

func (r *ring) at(i int64) int64 { return *r.slot(int(i)) }

func (r *ring) newest() int64 { return *r.slot(r.count - 1) }

// settle drops what is older than period and takes what is later than now as
// now.
func (r *ring) settle(now, period int64) {
	if r.count > 0 && r.newest() <= now-period {
		r.drop(r.len())
	}
	for r.count > 0 && *r.slot(0) <= now-period {
		r.drop(1)
	}
	for i := r.count - 1; i >= 0 && *r.slot(i) > now; i-- {
		*r.slot(i) = now
	}
	if len(r.times) > minRing && 8*r.count <= len(r.times) {
		r.resize(2 * r.count)
	}
}

const minRing = 4

// resize makes room for n times, and some more.
func (r *ring) resize(n int) {
	resized := make([]int64, 1<<bits.Len(uint(max(n, minRing)-1)))
	for i := range r.count {
		resized[i] = *r.slot(i)
	}
	r.times, r.head = resized, 0
}

func (r *ring) drop(n int64) {
	r.head = (r.head + int(n)) & (len(r.times) - 1)
	r.count -= int(n)
}

func (r *ring) push(now, times int64) {
	if need := r.count + int(times); need > len(r.times) {
		r.resize(need)
	}
	for range times {
		r.count++
		*r.slot(r.count - 1) = now
	}
}
