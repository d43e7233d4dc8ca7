package ratelimit

import (
	"fmt"
	"strings"
)

// An Algorithm decides which requests of a key fit into a [Limit] of L
// requests per window W. They differ in how closely they keep "at most L in
// any W", in what a client sees after a burst, and in memory.
//
//	                      most admitted     most in a    memory
//	                      in any window W   short burst  per key
//	FixedWindow           2L-1              2L-1         constant
//	SlidingWindowLog      L                 L            grows with L
//	SlidingWindowCounter  2L-1              L            constant
//	TokenBucket           L+B-1             B            constant
//
// B is the burst of a token bucket. The worst cases are what an adversary who
// knows the boundaries can reach, not what ordinary traffic does; nothing was
// refunded.
//
// Whatever the algorithm, a window opens with a client's first request (so
// that clients do not all come back at the same instant), a denied request
// consumes nothing, and when several limits are given either all of them count
// a request or none does.
//
// A clock that was set back never locks a client out for long: what a store
// finds dated in the future it treats as if it had happened now, so that the
// longest wait is one period.
type Algorithm uint8

const (
	// FixedWindow counts the requests in a window that opens with the first
	// one and then starts afresh. The default: it is the cheapest, and what
	// "100 requests a minute" means to most people.
	//
	// Worst case: 2L-1 requests in one window's length, L-1 at the end of a
	// window and L at the start of the next; 2L if the request that opened the
	// first one was refunded, since the window stays where it was opened.
	FixedWindow Algorithm = iota

	// SlidingWindowLog remembers the time of every admitted request. It is
	// exact: never more than L in any window, wherever the window is laid. It
	// keeps 8 to 16 bytes for each request that counts, and takes limits of at
	// most 100,000 requests; above that use SlidingWindowCounter or
	// TokenBucket.
	SlidingWindowLog

	// SlidingWindowCounter keeps two counters, of the current window and of
	// the one before it, and weighs the earlier one by how much of it the
	// sliding window still covers. It smooths the edge of FixedWindow for the
	// same memory.
	//
	// It is an estimate, which supposes that the requests of the earlier
	// window were spread evenly. Ordinary traffic is (Cloudflare measured
	// 0.003 % of wrong decisions); an adversary who sends them all at its end
	// can reach 2L-1 in one window's length, or 2L as with FixedWindow.
	SlidingWindowCounter

	// TokenBucket lets B requests pass at once (see [Limit.Burst]) and then
	// one each W/L: a steady rate with room for bursts, the choice for APIs
	// whose callers should spread their requests. It is implemented as GCRA,
	// the Generic Cell Rate Algorithm (ITU-T I.371): one timestamp, the
	// theoretical arrival time (TAT), stands for the bucket. No fraction of a
	// token is lost: over a long run the rate is exactly L per W.
	//
	// Worst case: L+B-1 requests in one window's length, a full bucket and
	// what was refilled meanwhile.
	TokenBucket

	algorithmCount
)

var algorithmNames = [algorithmCount]string{
	FixedWindow:          "fixed-window",
	SlidingWindowLog:     "sliding-window-log",
	SlidingWindowCounter: "sliding-window-counter",
	TokenBucket:          "token-bucket",
}

// String returns the name used in rules: "fixed-window", "sliding-window-log",
// "sliding-window-counter" or "token-bucket".
func (a Algorithm) String() string {
	if a < algorithmCount {
		return algorithmNames[a]
	}
	return fmt.Sprintf("Algorithm(%d)", uint8(a))
}

// MarshalText returns the name of a, or an error if it is none of the four.
func (a Algorithm) MarshalText() ([]byte, error) {
	if err := a.validate(); err != nil {
		return nil, fmt.Errorf("ratelimit: %w", err)
	}
	return []byte(a.String()), nil
}

// UnmarshalText reads the name of an algorithm, in any case.
func (a *Algorithm) UnmarshalText(text []byte) error {
	parsed, err := parseAlgorithm(string(text))
	if err != nil {
		return fmt.Errorf("ratelimit: %w", err)
	}
	*a = parsed
	return nil
}

func parseAlgorithm(name string) (Algorithm, error) {
	for a, known := range algorithmNames {
		if strings.EqualFold(name, known) {
			return Algorithm(a), nil
		}
	}
	return 0, fmt.Errorf("unknown algorithm %q (use %s)%s", name,
		strings.Join(algorithmNames[:], ", "), didYouMean(strings.ToLower(name), algorithmNames[:]))
}

func (a Algorithm) validate() error {
	if a < algorithmCount {
		return nil
	}
	return fmt.Errorf("unknown algorithm %v; use FixedWindow, SlidingWindowLog, SlidingWindowCounter or TokenBucket", a)
}
