package benchmarks_test

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// accuracyLimit is the limit that the adversary works against.
const accuracyLimit = 10

// accuracySubjects are those in memory that limit, gin-rate-limit among them.
func accuracySubjects() []subject {
	return append(append(ourMemory(), memoryPeers()...), subject{name: "gin-rate-limit", realTime: true, make: func(_ testing.TB, q quota) take {
		s := jglStore(q)
		return func(key string) bool { return !s.Limit(key, nil).RateLimited }
	}})
}

// A plan is what an adversary does: so many requests at once at each of some
// times after the beginning.
type plan []attempt

type attempt struct {
	at       time.Duration
	requests int
}

const burst = 2 * accuracyLimit

// trickles lists a burst at each of the given times with a trickle after it.
func trickles(times []time.Duration, window time.Duration) []plan {
	var all []plan
	for _, first := range times {
		trickle := plan{{first, burst}}
		for at := first; at < first+2*window; at += window / 32 {
			trickle = append(trickle, attempt{at, 2})
		}
		all = append(all, trickle)
	}
	return all
}

// bursts lists two bursts at any of the given times, with and without a request
// at the beginning that opens a window.
func bursts(times []time.Duration) []plan {
	var all []plan
	for i, first := range times {
		for _, second := range times[i+1:] {
			both := plan{{first, burst}, {second, burst}}
			all = append(all, both, append(plan{{0, 1}}, both...))
		}
	}
	return all
}

// around lists times a little before, at and after each part of two windows:
// where windows begin and end, if they begin with the first request or on the
// clock, and where weights change.
func around(window, little time.Duration, parts int) []time.Duration {
	var times []time.Duration
	for i := range 2*parts + 1 {
		at := window * time.Duration(i) / time.Duration(parts)
		for _, d := range []time.Duration{-2 * little, -little, 0, little} {
			if at+d >= 0 {
				times = append(times, at+d)
			}
		}
	}
	slices.Sort(times)
	return slices.Compact(times)
}

// admitted is when a request was: not before, and not after.
type admitted struct{ from, to time.Time }

// run carries out p from the next full window of the clock on, where windows
// on the clock begin.
func (p plan) run(decide take, key string, window time.Duration) []admitted {
	start := time.Now().Truncate(window).Add(window)
	var all []admitted
	for _, a := range p {
		time.Sleep(time.Until(start.Add(a.at)))
		for range a.requests {
			from := time.Now()
			if decide(key) {
				all = append(all, admitted{from, time.Now()})
			}
		}
	}
	return all
}

// mostIn returns the most that were certainly admitted in any window.
func mostIn(window time.Duration, all []admitted) int {
	most := 0
	for i := range all {
		n := 0
		for _, a := range all[i:] {
			if a.to.Sub(all[i].from) < window {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// TestTheMostAdmittedInAnyWindow plays an adversary who knows the boundaries
// against each limiter, and reports the most that got through in any window of
// the configured length. Ours must keep what the documentation promises.
func TestTheMostAdmittedInAnyWindow(t *testing.T) {
	t.Parallel()
	for _, s := range accuracySubjects() {
		t.Run("limiter="+s.name, func(t *testing.T) {
			t.Parallel()
			most := 0
			if s.realTime {
				window := time.Second // gin-rate-limit knows whole seconds only
				times := around(window, 50*time.Millisecond, 1)
				most = searchInRealTime(t, s.make, window, append(bursts(times), trickles(times, window)...))
			} else {
				synctest.Test(t, func(t *testing.T) { most = search(t, s, time.Second) })
			}
			reportAccuracy(t, s.name, most)
		})
	}
}

func TestTheMostAdmittedInAnyWindowByRedis(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	const window, little = 400 * time.Millisecond, 25 * time.Millisecond
	times := []time.Duration{0, window - 2*little, window + little, 2*window - 3*little}
	for _, subject := range redisSubjects() {
		if strings.HasPrefix(subject.name, "floor") {
			continue
		}
		t.Run("limiter="+subject.name, func(t *testing.T) {
			t.Parallel()
			most := searchInRealTime(t, func(tb testing.TB, q quota) take { return subject.make(tb, s.client, q) }, window, bursts(times))
			reportAccuracy(t, subject.name, most)
		})
	}
}

// search tries every plan on virtual time, each against a limiter of its own.
func search(t *testing.T, s subject, window time.Duration) (most int) {
	t.Helper()
	times := around(window, window/1000, 8)
	for _, p := range append(bursts(times), trickles(times, window)...) {
		decide := s.make(t, quota{requests: accuracyLimit, period: window})
		most = max(most, mostIn(window, p.run(decide, "203.113.245.117", window)))
	}
	return most
}

// searchInRealTime tries some plans, all at the same time.
func searchInRealTime(t *testing.T, makeTake func(testing.TB, quota) take, window time.Duration, plans []plan) int {
	t.Helper()
	var all sync.WaitGroup
	var mu sync.Mutex
	most := 0
	for i, p := range plans {
		decide := makeTake(t, quota{requests: accuracyLimit, period: window})
		all.Go(func() {
			n := mostIn(window, p.run(decide, "203.113.245."+strconv.Itoa(100+i), window))
			mu.Lock()
			defer mu.Unlock()
			most = max(most, n)
		})
	}
	all.Wait()
	return most
}

func reportAccuracy(t *testing.T, name string, most int) {
	t.Helper()
	t.Attr("limit", strconv.Itoa(accuracyLimit))
	t.Attr("most-in-any-window", strconv.Itoa(most))
	switch {
	case strings.HasSuffix(name, "sliding-window-log"):
		assert.Equal(t, accuracyLimit, most, "a log is exact")
	case strings.HasPrefix(name, "ours"):
		assert.LessOrEqual(t, most, 2*accuracyLimit-1)
	}
}

const (
	crowd      = 64
	crowdLimit = 1_000
)

// TestTheMostAdmittedOf64GoroutinesAtOnce lets them all ask for one key four
// times as often as the limit admits.
func TestTheMostAdmittedOf64GoroutinesAtOnce(t *testing.T) {
	for _, s := range accuracySubjects() {
		t.Run("limiter="+s.name, func(t *testing.T) {
			decide := s.make(t, quota{requests: crowdLimit, period: time.Hour})
			reportCrowd(t, s.name, decide, 20)
		})
	}
}

func TestTheMostAdmittedOf64GoroutinesAtOnceByRedis(t *testing.T) {
	s := startServer(t)
	for _, subject := range redisSubjects() {
		if strings.HasPrefix(subject.name, "floor") {
			continue
		}
		t.Run("limiter="+subject.name, func(t *testing.T) {
			reportCrowd(t, subject.name, subject.make(t, s.client, quota{requests: crowdLimit, period: time.Hour}), 1)
		})
	}
}

func reportCrowd(t *testing.T, name string, decide take, rounds int) {
	t.Helper()
	most := int64(0)
	for round := range rounds {
		key := "203.113.245." + strconv.Itoa(100+round)
		var n atomic.Int64
		var all sync.WaitGroup
		begin := make(chan struct{})
		for range crowd {
			all.Go(func() {
				<-begin
				for range 4 * crowdLimit / crowd {
					if decide(key) {
						n.Add(1)
					}
				}
			})
		}
		close(begin)
		all.Wait()
		most = max(most, n.Load())
	}
	t.Attr("limit", strconv.Itoa(crowdLimit))
	t.Attr("admitted", strconv.FormatInt(most, 10))
	if strings.HasPrefix(name, "ours") {
		assert.EqualValues(t, crowdLimit, most)
	}
}
