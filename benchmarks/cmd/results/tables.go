package main

import (
	"strconv"
	"strings"
)

type memoryScenario struct{ title, benchmark, params string }

var memoryScenarios = []memoryScenario{
	{"One hot key, allowed", "Memory", "keys=1/outcome=allowed/"},
	{"100,000 keys, allowed", "Memory", "keys=100000/outcome=allowed/"},
	{"1,000,000 keys, allowed", "Memory", "keys=1000000/outcome=allowed/"},
	{"One hot key, denied", "Memory", "keys=1/outcome=denied/"},
	{"100,000 keys, denied", "Memory", "keys=100000/outcome=denied/"},
	{"1,000,000 keys, denied", "Memory", "keys=1000000/outcome=denied/"},
	{"Keys never seen before, in a table of 100,000 (full, where it has a bound)", "NewKeys", ""},
}

func memoryTable(d *data, s memoryScenario) string {
	var rows [][]string
	for _, name := range d.names[s.benchmark] {
		of := func(name string, procs int, unit string) number {
			return d.at(s.benchmark, s.params+"limiter="+name, procs, unit)
		}
		one, two := of(name, 1, "ns/op"), of(name, 2, "ns/op")
		if one.missing && two.missing {
			continue
		}
		note := ""
		if wrong := of(name, 2, "wrong/op"); !wrong.missing {
			note = " (" + digits(100*wrong.median) + " % failed)"
		}
		rows = append(rows, []string{
			bold(name) + note, cell(one), cell(two),
			times(ratio(one, of("floor", 1, "ns/op"))), times(ratio(two, of("floor", 2, "ns/op"))),
			times(ratio(one, of("go-limiter", 1, "ns/op"))), times(ratio(two, of("go-limiter", 2, "ns/op"))),
			plain(of(name, 2, "allocs/op")),
		})
	}
	return table([]string{"", "1 core", "2 cores", "× floor, 1", "× floor, 2", "× go-limiter, 1", "× go-limiter, 2", "allocs"}, rows)
}

var growthKeys = []int{1_000, 10_000, 100_000, 1_000_000}

func growthTable(d *data) string {
	var rows [][]string
	for _, name := range d.names["Memory"] {
		if !isOurs(name) && !isFloor(name) {
			continue
		}
		row := []string{bold(name)}
		for _, keys := range growthKeys {
			row = append(row, cell(growthAt(d, name, keys)))
		}
		rows = append(rows, append(row, times(growth(d, name))))
	}
	return table([]string{"", "1,000", "10,000", "100,000", "1,000,000", "a million / a thousand"}, rows)
}

func growthAt(d *data, name string, keys int) number {
	return d.at("Memory", "keys="+strconv.Itoa(keys)+"/outcome=allowed/limiter="+name, 1, "ns/op")
}

func growth(d *data, name string) number {
	return ratio(growthAt(d, name, 1_000_000), growthAt(d, name, 1_000))
}

func sizeTable(d *data) string {
	var rows [][]string
	for _, name := range d.names["KeySize"] {
		rows = append(rows, []string{bold(name), plain(d.at("KeySize", "limiter="+name, 0, "B/key"))})
	}
	return table([]string{"", "bytes a key"}, rows)
}

// percentile is that of a limiter's calls, without what the clock takes.
func percentile(d *data, name, unit string) number {
	return added(d.at("Latency", "limiter="+name, 0, unit), d.at("Latency", "limiter=nothing", 0, "p50-ns"))
}

func tail(d *data, name string) number {
	return ratio(percentile(d, name, "p99.9-ns"), percentile(d, name, "p50-ns"))
}

func latencyTable(d *data) string {
	var rows [][]string
	for _, name := range d.names["Latency"] {
		row := []string{bold(name)}
		for _, unit := range []string{"p50-ns", "p99-ns", "p99.9-ns", "max-ns"} {
			row = append(row, cell(d.at("Latency", "limiter="+name, 0, unit)))
		}
		divided := "–"
		if name != "nothing" {
			divided = times(tail(d, name))
		}
		rows = append(rows, append(row, divided))
	}
	return table([]string{"", "median", "p99", "p99.9", "longest", "p99.9 / median"}, rows)
}

func ginAt(d *data, name, outcome, unit string) number {
	return d.at("Gin", "outcome="+outcome+"/middleware="+name, 1, unit)
}

// ginAdds is what a middleware adds to bare Gin, whose handler a denied
// request never reaches.
func ginAdds(d *data, name, outcome, unit string) number {
	return added(ginAt(d, name, outcome, unit), ginAt(d, "bare", "allowed", unit))
}

func ginTable(d *data) string {
	var rows [][]string
	for _, name := range d.names["Gin"] {
		row := []string{bold(name)}
		for _, outcome := range []string{"allowed", "denied"} {
			against := "–"
			adds := number{missing: true}
			if !isFloor(name) {
				adds = ginAdds(d, name, outcome, "ns/op")
				against = times(ratio(adds, ginAdds(d, "ulule", outcome, "ns/op")))
			}
			row = append(row, cell(ginAt(d, name, outcome, "ns/op")), plain(adds), against, plain(ginAt(d, name, outcome, "allocs/op")))
		}
		rows = append(rows, row)
	}
	return table([]string{
		"", "allowed", "added", "× ulule's", "allocs", "denied", "added", "× ulule's", "allocs",
	}, rows)
}

func redisAt(d *data, name, client string, goroutines int) number {
	return d.at("Redis", "limiter="+name+"/client="+client+"/goroutines="+strconv.Itoa(goroutines), 0, "decisions/s")
}

func redisTable(d *data) string {
	var rows [][]string
	for _, client := range []string{"plain", "autopipeline"} {
		for _, name := range d.names["Redis"] {
			row := []string{bold(name) + ", " + client}
			known := false
			for _, goroutines := range []int{1, 16, 64} {
				n := redisAt(d, name, client, goroutines)
				known = known || !n.missing
				row = append(row, cell(n))
			}
			at64 := redisAt(d, name, client, 64)
			row = append(row, times(ratio(at64, redisAt(d, "floor-evalsha", "plain", 64))),
				plain(d.at("Redis", "limiter="+name+"/client="+client+"/goroutines=64", 0, "asked/op")))
			if known {
				rows = append(rows, row)
			}
		}
	}
	return table([]string{"", "1", "16", "64", "64: × script floor, plain", "64: asked for each"}, rows)
}

func redisLimitsAt(d *data, name string, limits, goroutines int) number {
	n := d.at("RedisLimits", "limiter="+name+"/limits="+strconv.Itoa(limits)+"/goroutines="+strconv.Itoa(goroutines), 0, "ns/op")
	n.median /= 1000
	return n
}

func redisLimitsTable(d *data) string {
	var rows [][]string
	for _, name := range d.names["RedisLimits"] {
		row := []string{bold(name)}
		for _, goroutines := range []int{1, 64} {
			for limits := 1; limits <= 3; limits++ {
				row = append(row, cell(redisLimitsAt(d, name, limits, goroutines)))
			}
			row = append(row, times(ratio(redisLimitsAt(d, name, 3, goroutines), redisLimitsAt(d, name, 1, goroutines))))
		}
		rows = append(rows, row)
	}
	return table([]string{
		"", "1 goroutine: one", "two", "three", "three / one", "64 goroutines: one", "two", "three", "three / one",
	}, rows)
}

func redisDeniedAt(d *data, name, cache string, goroutines int, unit string) number {
	if cache != "" {
		cache = "/cache=" + cache
	}
	return d.at("RedisDenied", "limiter="+name+cache+"/goroutines="+strconv.Itoa(goroutines), 0, unit)
}

func redisDeniedTable(d *data) string {
	var rows [][]string
	for _, name := range d.names["RedisDenied"] {
		for _, cache := range []string{"", "off", "on"} {
			one, many := redisDeniedAt(d, name, cache, 1, "decisions/s"), redisDeniedAt(d, name, cache, 64, "decisions/s")
			if one.missing && many.missing {
				continue
			}
			label := bold(name)
			if cache != "" {
				label += ", deny cache " + cache
			}
			rows = append(rows, []string{
				label, cell(one), cell(many), plain(redisDeniedAt(d, name, cache, 64, "asked/op")),
				times(ratio(many, redisDeniedAt(d, name, "off", 64, "decisions/s"))),
			})
		}
	}
	return table([]string{"", "1 goroutine", "64 goroutines", "64: asked for each", "64: × without the cache"}, rows)
}

func roundTripTable(d *data) string {
	var rows [][]string
	for _, name := range d.names["RedisRoundTrips"] {
		row := []string{bold(name)}
		for _, limits := range []string{"1", "3"} {
			for _, unit := range []string{"roundtrips/op", "asked/op", "commands/op"} {
				row = append(row, plain(d.at("RedisRoundTrips", "limiter="+name+"/limits="+limits, 0, unit)))
			}
		}
		rows = append(rows, row)
	}
	return table([]string{"", "one limit: round trips", "scripts", "commands", "three limits: round trips", "scripts", "commands"}, rows)
}

func redisSizeTable(d *data) string {
	var rows [][]string
	row := func(label, benchmark, params string) {
		rows = append(rows, []string{label, plain(d.at(benchmark, params, 0, "B/key")), plain(d.at(benchmark, params, 0, "MEMORY-USAGE-B"))})
	}
	for _, name := range d.names["RedisSize"] {
		row(bold(name), "RedisSize", "limiter="+name)
	}
	for _, name := range d.names["RedisLogSize"] {
		for _, entries := range []string{"10", "100", "1000"} {
			row(bold(name)+" of "+entries+" requests", "RedisLogSize", "limiter="+name+"/entries="+entries)
		}
	}
	return table([]string{"", "used_memory", "MEMORY USAGE"}, rows)
}

var limitsMeasured = []int{10, 100, 1_000, 10_000}

func limitAt(d *data, name, outcome string, limit int) number {
	n := d.at("RedisLimit", "limiter="+name+"/outcome="+outcome+"/limit="+strconv.Itoa(limit), 0, "ns/op")
	n.median /= 1000
	return n
}

func limitTable(d *data) string {
	var rows [][]string
	for _, name := range d.names["RedisLimit"] {
		for _, outcome := range []string{"allowed", "denied"} {
			row := []string{bold(name) + ", " + outcome}
			for _, limit := range limitsMeasured {
				row = append(row, cell(limitAt(d, name, outcome, limit)))
			}
			rows = append(rows, append(row, times(ratio(limitAt(d, name, outcome, 10_000), limitAt(d, name, outcome, 10)))))
		}
	}
	return table([]string{"", "10", "100", "1,000", "10,000", "10,000 / 10"}, rows)
}

const (
	windowTest = "TestTheMostAdmittedInAnyWindow"
	crowdTest  = "TestTheMostAdmittedOf64GoroutinesAtOnce"
)

// accuracyRow is what one limiter admitted.
type accuracyRow struct {
	label               string
	ours                bool
	most, limit         number
	crowd, crowdAllowed number
}

func accuracyRows(d *data) []accuracyRow {
	var rows []accuracyRow
	for _, place := range []struct{ suffix, label string }{{"", ""}, {"ByRedis", ", Redis"}} {
		// The tests run side by side: the order is that of the crowd's.
		for _, name := range d.names[crowdTest+place.suffix] {
			params := "limiter=" + name
			rows = append(rows, accuracyRow{
				label:        name + place.label,
				ours:         isOurs(name),
				most:         d.at(windowTest+place.suffix, params, 0, "most-in-any-window"),
				limit:        d.at(windowTest+place.suffix, params, 0, "limit"),
				crowd:        d.at(crowdTest+place.suffix, params, 0, "admitted"),
				crowdAllowed: d.at(crowdTest+place.suffix, params, 0, "limit"),
			})
		}
	}
	return rows
}

func accuracyTable(d *data) string {
	var rows [][]string
	for _, r := range accuracyRows(d) {
		label := r.label
		if r.ours {
			label = "**" + strings.Replace(r.label, ", ", "**, ", 1)
			if !strings.Contains(label[2:], "**") {
				label += "**"
			}
		}
		rows = append(rows, []string{label, plain(r.most), times(ratio(r.most, r.limit)), plain(r.crowd), times(ratio(r.crowd, r.crowdAllowed))})
	}
	return table([]string{"", "most in any window (limit 10)", "× limit", "64 at once (limit 1,000)", "× limit"}, rows)
}
