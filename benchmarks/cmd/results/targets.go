package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// A target is what the product promises to reach, by what was measured.
type target struct {
	number   int
	text     string
	measured string
	verdict  verdict
}

type verdict int

const (
	unknown verdict = iota
	met
	missed
)

func (v verdict) String() string { return [...]string{"not measured", "met", "**missed**"}[v] }

// checks gathers what several measurements say about one target.
type checks struct {
	good, bad []string
	remark    string
}

// within notes a value that must be at most limit.
func (c *checks) within(label string, n number, limit float64) { c.note(label, n, n.median <= limit) }

// above notes a value that must be at least limit.
func (c *checks) above(label string, n number, limit float64) { c.note(label, n, n.median >= limit) }

func (c *checks) note(label string, n number, ok bool) {
	if n.missing || math.IsNaN(n.median) {
		return
	}
	text := label + " " + times(n)
	if n.median >= 100 || n.median == math.Trunc(n.median) {
		text = label + " " + digits(n.median)
	}
	if ok {
		c.good = append(c.good, text)
	} else {
		c.bad = append(c.bad, text)
	}
}

func (c *checks) target(n int, text string) target {
	var parts []string
	if len(c.bad) > 0 {
		parts = append(parts, "**"+strings.Join(c.bad, ", ")+"**")
	}
	if len(c.good) > 0 {
		parts = append(parts, strings.Join(c.good, ", "))
	}
	if c.remark != "" {
		parts = append(parts, c.remark)
	}
	t := target{number: n, text: text, measured: strings.Join(parts, "<br>")}
	switch {
	case len(c.bad) > 0:
		t.verdict = missed
	case len(c.good) > 0:
		t.verdict = met
	}
	return t
}

func short(name string) string { return strings.TrimPrefix(name, "ours-") }

// fastest are the algorithms that some targets name.
var fastest = []string{"ours-fixed-window", "ours-token-bucket"}

func targets(d *data) []target {
	return append(append(append(memoryTargets(d), ginTargets(d)...), redisTargets(d)...), append(boundTargets(d), growthTargets(d)...)...)
}

func memoryTargets(d *data) []target {
	var allocs, hot, cores, floor checks
	peers := map[string]*checks{}
	at := func(keys, outcome, name string, procs int, unit string) number {
		return d.at("Memory", "keys="+keys+"/outcome="+outcome+"/limiter="+name, procs, unit)
	}
	for _, name := range d.names["Memory"] {
		if !isOurs(name) {
			continue
		}
		most := number{missing: true, median: math.NaN()}
		for _, keys := range []string{"1", "1000", "10000", "100000", "1000000"} {
			for _, outcome := range []string{"allowed", "denied"} {
				for procs := 1; procs <= 2; procs++ {
					if n := at(keys, outcome, name, procs, "allocs/op"); !n.missing && (most.missing || n.median > most.median) {
						most = n
					}
				}
			}
		}
		allocs.within(short(name), most, 0)
		for procs := 1; procs <= 2; procs++ {
			hot.within(fmt.Sprintf("%s on %d", short(name), procs),
				ratio(at("1", "allowed", name, procs, "ns/op"), at("1", "allowed", "go-limiter", procs, "ns/op")), 0.75)
		}
		for _, keys := range []string{"1", "100000", "1000000"} {
			one, two := at(keys, "allowed", name, 1, "ns/op"), at(keys, "allowed", name, 2, "ns/op")
			cores.within(short(name)+" "+keysLabel(keys), ratio(two, one), 1)
		}
		for _, keys := range []string{"100000", "1000000"} {
			if peers[keys] == nil {
				peers[keys] = &checks{}
			}
			best, who := bestPeer(d, keys)
			peers[keys].within(short(name), ratio(at(keys, "allowed", name, 2, "ns/op"), best), 0.8)
			if who != "" {
				peers[keys].remark = "best peer: " + who
			}
		}
	}
	for _, name := range fastest {
		for _, keys := range []string{"1", "100000", "1000000"} {
			for procs := 1; procs <= 2; procs++ {
				floor.within(fmt.Sprintf("%s %s on %d", short(name), keysLabel(keys), procs),
					ratio(at(keys, "allowed", name, procs, "ns/op"), at(keys, "allowed", "floor", procs, "ns/op")), 2)
			}
		}
	}
	all := []target{
		allocs.target(1, "Memory, every algorithm: 0 allocations on existing keys"),
		hot.target(1, "Hot key, allowed: at most 0.75 × go-limiter on 1 core and on 2"),
	}
	for _, keys := range []string{"100000", "1000000"} {
		c := peers[keys]
		if c == nil {
			c = &checks{}
		}
		all = append(all, c.target(1, keysLabel(keys)+", allowed, 2 cores: at most 0.8 × the best peer"))
	}
	return append(all,
		cores.target(1, "Not slower with two cores than with one (two / one)"),
		floor.target(1, "Fixed window and token bucket: within 2 × the floor"))
}

func keysLabel(keys string) string {
	return map[string]string{"1": "hot key", "100000": "100,000 keys", "1000000": "1,000,000 keys"}[keys]
}

func bestPeer(d *data, keys string) (best number, who string) {
	best.missing = true
	for _, name := range d.names["Memory"] {
		n := d.at("Memory", "keys="+keys+"/outcome=allowed/limiter="+name, 2, "ns/op")
		if !isOurs(name) && !isFloor(name) && !n.missing && (best.missing || n.median < best.median) {
			best, who = n, name
		}
	}
	return best, who
}

func ginTargets(d *data) []target {
	var allowed, denied, allocs checks
	for _, name := range d.names["Gin"] {
		if !isOurs(name) {
			continue
		}
		allowed.within(short(name), ratio(ginAdds(d, name, "allowed", "ns/op"), ginAdds(d, "ulule", "allowed", "ns/op")), 0.45)
		denied.within(short(name), ratio(ginAdds(d, name, "denied", "ns/op"), ginAdds(d, "ulule", "denied", "ns/op")), 0.45)
		allocs.within(short(name), ginAdds(d, name, "allowed", "allocs/op"), 4)
	}
	return []target{
		allowed.target(2, "Gin, allowed: what we add is at most 0.45 × what ulule's middleware adds"),
		denied.target(2, "Gin, denied: the same"),
		allocs.target(2, "At most 4 allocations more than bare Gin when allowed"),
	}
}

func redisTargets(d *data) []target {
	var floor, bucket, auto, limits, denied checks
	floor.above("fixed-window / script", ratio(redisAt(d, fastest[0], "plain", 64), redisAt(d, "floor-evalsha", "plain", 64)), 0.95)
	bucket.above("token-bucket / redis_rate", ratio(redisAt(d, "ours-token-bucket", "plain", 64), redisAt(d, "redis_rate", "plain", 64)), 1)
	for _, name := range d.names["Redis"] {
		if !isOurs(name) {
			continue
		}
		auto.above(short(name), ratio(redisAt(d, name, "autopipeline", 64), redisAt(d, name, "plain", 64)), 1.4)
		limits.within(short(name), ratio(redisLimitsAt(d, name, 3, 64), redisLimitsAt(d, name, 1, 64)), 1.6)
		denied.above(short(name), ratio(redisDeniedAt(d, name, "on", 64, "decisions/s"), redisDeniedAt(d, name, "off", 64, "decisions/s")), 50)
	}
	return []target{
		floor.target(3, "Redis, plain client, 64 goroutines: fixed window at least 0.95 × the throughput of a bare script"),
		bucket.target(3, "Token bucket faster than redis_rate"),
		auto.target(3, "AutoPipeline: at least 1.4 × our plain client"),
		limits.target(3, "Three limits in one decision: at most 1.6 × the cost of one"),
		denied.target(3, "Denied keys: at least 50 × the throughput of asking Redis"),
	}
}

func boundTargets(d *data) []target {
	var size, calls checks
	for _, name := range fastest {
		size.within(short(name), d.at("KeySize", "limiter="+name, 0, "B/key"), 130)
	}
	for _, name := range d.names["Latency"] {
		if isOurs(name) {
			calls.within(short(name), tail(d, name), 20)
		}
	}
	if n := tail(d, "spinning"); !n.missing {
		calls.remark = "spinning for 1 µs without touching memory: " + times(n)
	}
	return []target{
		size.target(4, "At most 130 bytes a key at a million keys (bounded exactly: see the test in latency_test.go)"),
		calls.target(4, "Full table under insertion: p99.9 of a single call at most 20 × its median"),
	}
}

// How much more than its reference something may grow before we say that it
// does: what is below is noise.
const (
	growthTolerance = 1.25
	limitTolerance  = 1.25
)

func growthTargets(d *data) []target {
	var keys, limits checks
	floor := growth(d, "floor")
	for _, name := range d.names["Memory"] {
		if isOurs(name) {
			keys.within(short(name), ratio(growth(d, name), floor), growthTolerance)
		}
	}
	for _, name := range d.names["RedisLimit"] {
		if strings.HasSuffix(name, "log") {
			continue
		}
		for _, outcome := range []string{"allowed", "denied"} {
			least, most := math.Inf(1), 0.0
			for _, limit := range limitsMeasured {
				n := limitAt(d, name, outcome, limit)
				if n.missing {
					most = math.NaN()
				}
				least, most = min(least, n.median), max(most, n.median)
			}
			limits.within(short(name)+" "+outcome, number{median: most / least}, limitTolerance)
		}
	}
	return []target{
		keys.target(5, fmt.Sprintf("From 1,000 to 1,000,000 keys, our growth is that of the floor (ours / floor's, at most %.2f)", growthTolerance)),
		limits.target(5, fmt.Sprintf("Redis: the cost does not depend on the limit, but for the log (most / least over limits 10 to 10,000, at most %.2f)", limitTolerance)),
	}
}

func targetTable(all []target) string {
	var rows [][]string
	for _, t := range all {
		rows = append(rows, []string{strconv.Itoa(t.number), t.text, t.measured, t.verdict.String()})
	}
	return strings.ReplaceAll(table([]string{"", "target", "measured", ""}, rows), "---:", "---")
}
