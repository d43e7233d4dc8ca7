package ratelimit

import (
	"log/slog"
	"sync/atomic"
)

// An Event is one decision, as [WithObserver] sees it.
type Event struct {
	// Limiter is the name of the limiter, and Policy the name under which the
	// request was counted; they differ where a route has a budget of its own.
	Limiter, Policy string

	// Route is method and pattern of the request, "GET /users/:id". It is
	// empty for a call of [Limiter.Allow], and ends in a blank for a request
	// that matches no route.
	Route string

	// Cost is what the request asked for.
	Cost int

	// Result is the decision. Where Err is set it is what became of the
	// request all the same: Allowed tells, and the numbers are those of the
	// local store under [FailLocal], else 0.
	Result Result

	// DryRun is true if the decision was not enforced.
	DryRun bool

	// Err is why the store could not decide, or why what the application
	// passed to the limiter could not be used; nil otherwise.
	Err error

	// A pointer, so that printing the Event does not print the key.
	key *string
}

// KeyHash returns the key as it may leave the process: its SHA-256, cut to 128
// bits, in hexadecimal. The Redis store names its keys by the same hash.
func (e Event) KeyHash() string {
	if e.key == nil {
		return ""
	}
	return keyHash(*e.key)
}

// A warner logs each kind of misuse once.
type warner struct {
	logger *slog.Logger // nil: slog.Default(), as it is when the warning comes
	warned [warningCount]atomic.Bool
}

type warning int

const (
	warnForwarded warning = iota
	warnUserType
	warnNegativeCost
	warnLimitFunc
	warningCount
)

func (w *warner) log() *slog.Logger {
	if w.logger != nil {
		return w.logger
	}
	return slog.Default()
}

// once logs the message the first time this warning is given.
func (w *warner) once(kind warning, message string) {
	if !w.warned[kind].Swap(true) {
		w.log().Warn("ratelimit: " + message)
	}
}
