package ratelimit

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Limit is how much may pass in how long: Requests in every Period.
//
// Build one with [PerSecond], [PerMinute], [PerHour], [PerDay], [Per] or
// [ParseLimit]; the zero Limit is refused wherever one is taken, because it
// could be read as "nothing" or as "everything".
type Limit struct {
	// Requests is the number of requests (units of cost) admitted per Period:
	// 1 to 2,147,483,647.
	Requests int

	// Period is the length of the window: 1 ms to 366 days. It is enforced in
	// whole milliseconds, rounded up.
	Period time.Duration

	// Burst is the capacity of the bucket, in requests, and only matters to
	// [TokenBucket]: how many may pass at once after a quiet time. 0, the
	// default, means Requests.
	Burst int
}

// The bounds of a Limit. maxRequests keeps every product in the algorithms
// inside 128 bits and a count inside 32, on 32-bit machines too.
const (
	maxRequests = math.MaxInt32
	minPeriod   = time.Millisecond
	maxPeriod   = 366 * day
	day         = 24 * time.Hour
)

// PerSecond returns a [Limit] of n requests a second.
func PerSecond(n int) Limit { return Per(n, time.Second) }

// PerMinute returns a [Limit] of n requests a minute.
func PerMinute(n int) Limit { return Per(n, time.Minute) }

// PerHour returns a [Limit] of n requests an hour.
func PerHour(n int) Limit { return Per(n, time.Hour) }

// PerDay returns a [Limit] of n requests in 24 hours.
func PerDay(n int) Limit { return Per(n, day) }

// Per returns a [Limit] of n requests in every period.
func Per(n int, period time.Duration) Limit { return Limit{Requests: n, Period: period} }

// WithBurst returns l with a bucket of n requests. See [Limit.Burst].
func (l Limit) WithBurst(n int) Limit {
	l.Burst = n
	return l
}

// units are the periods that have a name. The first name is the one String
// writes; "ms" is understood but, being no word people say, written as a
// duration.
var units = []struct {
	period time.Duration
	names  []string
}{
	{time.Millisecond, []string{"ms", "millisecond", "milliseconds"}},
	{time.Second, []string{"second", "s", "sec", "secs", "seconds"}},
	{time.Minute, []string{"minute", "m", "min", "mins", "minutes"}},
	{time.Hour, []string{"hour", "h", "hr", "hrs", "hours"}},
	{day, []string{"day", "d", "days"}},
}

// String returns l in the form [ParseLimit] reads: "100/minute", "10/1m30s",
// "20/second burst 40".
func (l Limit) String() string { return string(l.append(nil)) }

func (l Limit) append(dst []byte) []byte {
	dst = append(strconv.AppendInt(dst, int64(l.Requests), 10), '/')
	dst = append(dst, periodString(l.Period)...)
	if l.Burst != 0 {
		dst = strconv.AppendInt(append(dst, " burst "...), int64(l.Burst), 10)
	}
	return dst
}

func periodString(d time.Duration) string {
	for _, u := range units[1:] {
		if d == u.period {
			return u.names[0]
		}
	}
	text := d.String() // 1h30m0s
	if strings.HasSuffix(text, "m0s") {
		text = text[:len(text)-2]
	}
	if strings.HasSuffix(text, "h0m") {
		text = text[:len(text)-2]
	}
	return text
}

// MarshalText returns l as [Limit.String] does, or the error of a Limit that
// could not be enforced.
func (l Limit) MarshalText() ([]byte, error) {
	if err := l.validate(); err != nil {
		return nil, fmt.Errorf("ratelimit: limit %q: %w", l, err)
	}
	return []byte(l.String()), nil
}

// UnmarshalText reads what [ParseLimit] reads, so that limits can stand in
// JSON, YAML, TOML, flags and the environment.
func (l *Limit) UnmarshalText(text []byte) error {
	parsed, err := ParseLimit(string(text))
	if err != nil {
		return err
	}
	*l = parsed
	return nil
}

// ParseLimit reads a limit as a person writes it: a number, "/" or "per", a
// period, and for a token bucket "burst" and its capacity.
//
//	100/minute   5/s   10/1m30s   100 per hour   1000 per 2 days   20/s burst 40
//
// Units are s, m, h and d and their words, plus ms; a period may also be a Go
// duration. Case and spaces do not matter. A zero, a negative number, an
// unknown unit, a number too large to count, or a period below a millisecond
// or above 366 days is an error that shows the text and what was expected.
// There are no months: they are not all of one length.
func ParseLimit(text string) (Limit, error) {
	l, err := parseLimit(strings.Fields(spaceSlash(strings.ToLower(text))))
	if err == nil {
		err = l.validate()
	}
	if err != nil {
		return Limit{}, fmt.Errorf("ratelimit: limit %q: %w", text, err)
	}
	return l, nil
}

// spaceSlash sets every "/" apart, so that "5/s", "5 /s" and "5 / s" are the
// same words.
func spaceSlash(text string) string { return strings.ReplaceAll(text, "/", " / ") }

const limitForm = `a limit is written like "100/minute", "10 per 1m30s" or "20/s burst 40"`

func parseLimit(words []string) (l Limit, err error) {
	if i := slices.Index(words, "burst"); i >= 0 {
		if len(words) != i+2 {
			return l, fmt.Errorf(`want one number after "burst"; %s`, limitForm)
		}
		if l.Burst, err = parseCount("burst", words[i+1]); err != nil {
			return l, err
		}
		words = words[:i]
	}
	if len(words) < 3 || words[1] != "/" && words[1] != "per" {
		return l, errors.New(limitForm)
	}
	if l.Requests, err = parseCount("number of requests", words[0]); err != nil {
		return l, err
	}
	l.Period, err = parsePeriod(words[2:])
	return l, err
}

// parseCount reads a positive whole number. It takes no sign: "+5" is not how
// anybody writes a limit, and "-5" deserves its own explanation.
func parseCount(what, word string) (int, error) {
	n, err := strconv.ParseUint(word, 10, 31)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, fmt.Errorf("%s %s is too large (at most %d)", what, word, maxRequests)
	case err != nil:
		return 0, fmt.Errorf("%s %q is not a positive whole number; %s", what, word, limitForm)
	case n == 0:
		return 0, fmt.Errorf("%s is 0, which would never let anything pass; use at least 1", what)
	}
	return int(n), nil
}

// parsePeriod reads a unit ("minute"), a number of units ("2 days"), or a
// duration with or without days ("1m30s", "1d12h").
func parsePeriod(words []string) (time.Duration, error) {
	count := 1
	if len(words) == 2 && isDigit(words[0][0]) {
		var err error
		if count, err = parseCount("number of "+words[1], words[0]); err != nil {
			return 0, err
		}
		words = words[1:]
	}
	if len(words) != 1 {
		return 0, errors.New(limitForm)
	}
	word := words[0]
	for _, u := range units {
		if slices.Contains(u.names, word) {
			if time.Duration(count) > maxPeriod/u.period {
				return 0, fmt.Errorf("period of %d %s is too long (at most 366 days)", count, word)
			}
			return time.Duration(count) * u.period, nil
		}
	}
	if count == 1 {
		if d, ok := parseDuration(word); ok {
			return d, nil
		}
	}
	return 0, fmt.Errorf("unknown unit %q (use s, m, h or d)%s", word, didYouMean(word, unitNames()))
}

// parseDuration is time.ParseDuration with days, and without the sign.
func parseDuration(word string) (time.Duration, bool) {
	if !isDigit(word[0]) {
		return 0, false
	}
	var days time.Duration
	if number, rest, found := strings.Cut(word, "d"); found {
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			return 0, false
		}
		if days = time.Duration(n) * day; rest == "" {
			return days, true
		}
		word = rest
	}
	d, err := time.ParseDuration(word)
	return days + d, err == nil && d >= 0 && days <= math.MaxInt64-d
}

func isDigit(b byte) bool { return '0' <= b && b <= '9' }

func unitNames() []string {
	var names []string
	for _, u := range units {
		names = append(names, u.names...)
	}
	return names
}

// validate reports why l cannot be enforced.
func (l Limit) validate() error {
	switch {
	case l == Limit{}:
		return errors.New("the limit is empty; use ratelimit.PerMinute(100) or the like")
	case l.Requests < 1:
		return fmt.Errorf("%d requests would never let anything pass; use at least 1", l.Requests)
	case l.Requests > maxRequests:
		return fmt.Errorf("%d requests is too large (at most %d)", l.Requests, maxRequests)
	case l.Period < minPeriod:
		return fmt.Errorf("period %v is too short; use at least 1ms", l.Period)
	case l.Period > maxPeriod:
		return fmt.Errorf("period %v is too long; use at most 366 days", l.Period)
	case l.Burst < 0:
		return fmt.Errorf("burst %d is negative; use at least 1, or 0 for a burst of %d", l.Burst, l.Requests)
	case l.Burst > maxRequests:
		return fmt.Errorf("burst %d is too large (at most %d)", l.Burst, maxRequests)
	case refillTime(l) > maxPeriod:
		return fmt.Errorf("a bucket of %d takes longer than 366 days to fill at %d per %v; use a smaller burst", l.Burst, l.Requests, l.Period)
	}
	return nil
}

// capacity is the most a token bucket of l can hold.
func (l Limit) capacity() int {
	if l.Burst > 0 {
		return l.Burst
	}
	return l.Requests
}

// refillTime is how long an empty token bucket of l takes to fill, or the
// longest duration there is where that overflows.
func refillTime(l Limit) time.Duration {
	hi, lo := bits.Mul64(uint64(l.capacity()), uint64(l.Period))
	if hi >= uint64(l.Requests) {
		return math.MaxInt64
	}
	q, _ := bits.Div64(hi, lo, uint64(l.Requests))
	return time.Duration(min(q, math.MaxInt64))
}

// didYouMean returns ` (did you mean "minute"?)` for the candidate nearest to
// word, or nothing where none is near.
func didYouMean(word string, candidates []string) string {
	best, distance := "", len(word)/3+1 // one edit in three letters is a typo
	for _, candidate := range candidates {
		if d := editDistance(word, candidate); d < distance {
			best, distance = candidate, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// editDistance is how many letters must be changed, left out, added or swapped
// with their neighbour to make b of a (optimal string alignment).
func editDistance(a, b string) int {
	before, row, next := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		next[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			next[j+1] = min(row[j]+cost, row[j+1]+1, next[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				next[j+1] = min(next[j+1], before[j-1]+1)
			}
		}
		before, row, next = row, next, before
	}
	return row[len(b)]
}
