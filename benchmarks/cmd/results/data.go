package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/perf/benchmath"
)

// data is all that was measured.
type data struct {
	environment [][2]string
	values      map[string][]float64 // by identity and unit
	names       map[string][]string  // the limiters of each benchmark, in their order
}

// load reads what measure has kept in dir.
func load(dir string) (*data, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no *.txt in %q; run without -from first", dir)
	}
	d := &data{values: map[string][]float64{}, names: map[string][]string{}}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			if filepath.Base(file) == environmentFile {
				if name, value, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
					d.environment = append(d.environment, [2]string{name, value})
				}
				continue
			}
			d.readBenchmark(line)
			d.readAttribute(line)
		}
	}
	return d, nil
}

var benchmarkName = regexp.MustCompile(`^Benchmark(\w+)/(\S+?)(?:-(\d+))?$`)

// readBenchmark reads "BenchmarkX/a=b/limiter=c-2  100  12.3 ns/op  1.0 other".
func (d *data) readBenchmark(line string) {
	fields := strings.Fields(line)
	if len(fields) < 4 {
		return
	}
	m := benchmarkName.FindStringSubmatch(fields[0])
	if m == nil {
		return
	}
	procs := m[3]
	if procs == "" {
		procs = "1"
	}
	for i := 2; i+1 < len(fields); i += 2 {
		value, err := strconv.ParseFloat(fields[i], 64)
		if err != nil {
			return
		}
		d.add(m[1], m[2], procs, fields[i+1], value)
	}
}

const attributePrefix = "=== ATTR"

// readAttribute reads "=== ATTR  TestX/limiter=c name 12", of which the largest
// of all values is what counts.
func (d *data) readAttribute(line string) {
	rest, ok := strings.CutPrefix(line, attributePrefix)
	fields := strings.Fields(rest)
	if !ok || len(fields) != 3 {
		return
	}
	test, params, _ := strings.Cut(fields[0], "/")
	if value, err := strconv.ParseFloat(fields[2], 64); err == nil {
		d.add(test, params, "", fields[1], value)
	}
}

func (d *data) add(benchmark, params, procs, unit string, value float64) {
	for part := range strings.SplitSeq(params, "/") {
		name, ok := strings.CutPrefix(part, "limiter=")
		if !ok {
			name, ok = strings.CutPrefix(part, "middleware=")
		}
		if ok && !slices.Contains(d.names[benchmark], name) {
			d.names[benchmark] = append(d.names[benchmark], name)
		}
	}
	id := identity(benchmark, params, procs, unit)
	d.values[id] = append(d.values[id], value)
}

func identity(benchmark, params, procs, unit string) string {
	return benchmark + "/" + params + "@" + procs + " " + unit
}

// A number is the median of a sample and the range in which the true one lies
// with 95 % confidence, as benchstat has it; missing where there is no sample.
type number struct {
	median  float64
	spread  string
	n       int
	missing bool
}

// at returns what was measured on procs cores: 0 for whatever the default was.
func (d *data) at(benchmark, params string, procs int, unit string) number {
	var sample []float64
	if procs > 0 {
		sample = d.values[identity(benchmark, params, strconv.Itoa(procs), unit)]
	} else {
		for _, p := range append([]string{""}, strings.Fields("1 2 4 6 8 10 12 16 24 32 48 64 96 128")...) {
			if sample = d.values[identity(benchmark, params, p, unit)]; sample != nil {
				break
			}
		}
	}
	if len(sample) == 0 {
		return number{median: math.NaN(), missing: true}
	}
	s := benchmath.AssumeNothing.Summary(benchmath.NewSample(slices.Clone(sample), &benchmath.DefaultThresholds), 0.95)
	return number{median: s.Center, spread: s.PctRangeString(), n: len(sample)}
}

// fact returns a line of the environment.
func (d *data) fact(name string) string {
	for _, f := range d.environment {
		if f[0] == name {
			return f[1]
		}
	}
	return ""
}

func (d *data) quick() bool { return d.fact("quick") == "true" }

// ratio is a/b, missing where either is.
func ratio(a, b number) number {
	return number{median: a.median / b.median, missing: a.missing || b.missing || b.median == 0}
}

// added is a-b, missing where either is.
func added(a, b number) number {
	return number{median: a.median - b.median, missing: a.missing || b.missing}
}

func isOurs(name string) bool { return strings.HasPrefix(name, "ours") }

func isFloor(name string) bool {
	return strings.HasPrefix(name, "floor") || name == "nothing" || name == "spinning" || name == "bare"
}
