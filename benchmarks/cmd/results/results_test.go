package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const sample = `goos: linux
BenchmarkMemory/keys=1/outcome=allowed/limiter=ours-fixed-window      	100	30.0 ns/op	0 B/op	0 allocs/op
BenchmarkMemory/keys=1/outcome=allowed/limiter=ours-fixed-window      	100	50.0 ns/op	0 B/op	0 allocs/op
BenchmarkMemory/keys=1/outcome=allowed/limiter=ours-fixed-window      	100	40.0 ns/op	0 B/op	0 allocs/op
BenchmarkMemory/keys=1/outcome=allowed/limiter=ours-fixed-window-2    	100	90.0 ns/op	0 B/op	0 allocs/op
BenchmarkMemory/keys=1/outcome=allowed/limiter=go-limiter             	100	80.0 ns/op	0 B/op	0 allocs/op
BenchmarkMemory/keys=1/outcome=allowed/limiter=go-limiter-2           	100	100 ns/op	0 B/op	0 allocs/op
BenchmarkGin/outcome=allowed/middleware=bare   	100	100 ns/op	0 allocs/op
BenchmarkGin/outcome=allowed/middleware=ulule  	100	1100 ns/op	12 allocs/op
BenchmarkGin/outcome=allowed/middleware=ours-fixed-window  	100	500 ns/op	4 allocs/op
=== ATTR  TestTheMostAdmittedInAnyWindow/limiter=ours-token-bucket limit 10
=== ATTR  TestTheMostAdmittedInAnyWindow/limiter=ours-token-bucket most-in-any-window 19
=== ATTR  TestTheMostAdmittedOf64GoroutinesAtOnce/limiter=ours-token-bucket limit 1000
=== ATTR  TestTheMostAdmittedOf64GoroutinesAtOnce/limiter=ours-token-bucket admitted 1000
`

func sampleData(t *testing.T) *data {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "all.txt"), []byte(sample), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, environmentFile), []byte("CPU: a fast one\nquick: true\n"), 0o600))
	d, err := load(dir)
	require.NoError(t, err)
	return d
}

func TestValuesAreMediansByCores(t *testing.T) {
	d := sampleData(t)
	at := func(procs int) number {
		return d.at("Memory", "keys=1/outcome=allowed/limiter=ours-fixed-window", procs, "ns/op")
	}
	assert.InDelta(t, 40, at(1).median, 0)
	assert.InDelta(t, 90, at(2).median, 0)
	assert.True(t, at(4).missing)
}

func TestTargetsAreMetMissedOrNotMeasured(t *testing.T) {
	verdicts := map[string]target{}
	for _, target := range targets(sampleData(t)) {
		verdicts[target.text] = target
	}
	hot := verdicts["Hot key, allowed: at most 0.75 × go-limiter on 1 core and on 2"]
	assert.Equal(t, missed, hot.verdict)
	assert.Equal(t, "**fixed-window on 2 0.90**<br>fixed-window on 1 0.50", hot.measured)
	assert.Equal(t, met, verdicts["Gin, allowed: what we add is at most 0.45 × what ulule's middleware adds"].verdict)
	assert.Equal(t, unknown, verdicts["Token bucket faster than redis_rate"].verdict)
}

func TestTheReportHasWhatWasMeasuredAndSaysWhatWasNot(t *testing.T) {
	text := report(sampleData(t))
	assert.Contains(t, text, "| **ours-fixed-window** | 40 | 90 |")
	assert.Contains(t, text, "| **ours-token-bucket** | 19 | 1.90 | 1,000 | 1.00 |")
	assert.Contains(t, text, "a fast one")
	assert.Contains(t, text, "Not measured.")
	assert.NotContains(t, text, "%!")
	assert.NotContains(t, text, "NaN")
}

func TestChartsAreWellFormedWhateverIsMissing(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, writeCharts(sampleData(t), dir))
	files, err := filepath.Glob(filepath.Join(dir, "*.svg"))
	require.NoError(t, err)
	require.Len(t, files, 6)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		assert.NotContains(t, string(text), "NaN", file)
		decoder := xml.NewDecoder(strings.NewReader(string(text)))
		for {
			_, err := decoder.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err, file)
		}
	}
}

func TestOutputIsKeptWithoutTheCourseOfTests(t *testing.T) {
	assert.Equal(t, "goos: linux\n=== ATTR  T/limiter=a limit 1\n",
		string(trim([]byte("goos: linux\n=== RUN   T\n\n=== ATTR  T/limiter=a limit 1\ngoos: linux\n"))))
}
