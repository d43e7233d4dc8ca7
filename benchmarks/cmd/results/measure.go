package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A section is what is run together and kept in a file of its own.
type section struct {
	name  string
	bench string // which benchmarks, or
	tests string // which tests
	cpu   string

	benchtime string // where it is not that of the settings
	rounds    int    // at most; 0: as the settings say
}

// The sections. Where sizes are measured nothing varies much, and two rounds
// tell as much as six.
var sections = []section{
	{name: "accuracy", tests: "TestTheMost", rounds: 1},
	{name: "sizes", bench: "^Benchmark(KeySize|RedisSize|RedisLogSize)$", benchtime: "1x", rounds: 2},
	{name: "latency", bench: "^BenchmarkLatency$", benchtime: "1x"},
	{name: "gin", bench: "^BenchmarkGin$", cpu: "1"},
	{name: "memory", bench: "^BenchmarkMemory$", cpu: "1,2"},
	{name: "newkeys", bench: "^BenchmarkNewKeys$", cpu: "1,2", benchtime: "300000x"},
	{name: "redis", bench: "^BenchmarkRedis$"},
	{name: "redislimits", bench: "^BenchmarkRedis(Limits|Limit|Denied)$"},
	{name: "roundtrips", bench: "^BenchmarkRedisRoundTrips$", benchtime: "1000x", rounds: 1},
}

func sectionNames() []string {
	var names []string
	for _, s := range sections {
		names = append(names, s.name)
	}
	return names
}

// measure runs the sections and keeps their output. The rounds go round all
// benchmarks of a section, so that what the machine does meanwhile meets all of
// them alike.
func measure(ctx context.Context, s settings) error {
	if s.quick {
		s.count, s.benchtime = 1, "20ms"
	}
	if err := os.MkdirAll(s.raw, 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "ratelimit-benchmarks-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary := filepath.Join(dir, "benchmarks.test")
	if out, err := exec.CommandContext(ctx, "go", "test", "-c", "-tags", s.tags, "-o", binary, ".").CombinedOutput(); err != nil {
		return fmt.Errorf("go test -c: %w\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(s.raw, environmentFile), []byte(environment(ctx, s)), 0o644); err != nil {
		return err
	}
	start := time.Now()
	for _, sec := range sections {
		if s.only != "" && !slices.Contains(strings.Split(s.only, ","), sec.name) {
			continue
		}
		if err := sec.run(ctx, s, binary, start); err != nil {
			return err
		}
	}
	return nil
}

func (sec section) run(ctx context.Context, s settings, binary string, start time.Time) error {
	rounds := s.count
	if sec.rounds > 0 {
		rounds = min(rounds, sec.rounds)
	}
	args := sec.args(s)
	var kept bytes.Buffer
	for round := range rounds {
		fmt.Fprintf(os.Stderr, "%6s  %s, round %d of %d\n", time.Since(start).Round(time.Second), sec.name, round+1, rounds)
		var stderr bytes.Buffer
		cmd := exec.CommandContext(ctx, binary, args...)
		cmd.Stdout, cmd.Stderr = &kept, &stderr
		if err := cmd.Run(); err != nil {
			// What has failed is in the output; the rest of it still counts.
			fmt.Fprintf(os.Stderr, "        %s: %v\n%s", sec.name, err, stderr.Bytes())
			if errors.Is(ctx.Err(), context.Canceled) {
				return ctx.Err()
			}
		}
	}
	return os.WriteFile(filepath.Join(s.raw, sec.name+".txt"), trim(kept.Bytes()), 0o644)
}

func (sec section) args(s settings) []string {
	if sec.tests != "" {
		return []string{"-test.run", sec.tests, "-test.v"}
	}
	benchtime := s.benchtime
	if sec.benchtime != "" {
		benchtime = sec.benchtime
		if s.quick && strings.HasSuffix(benchtime, "000x") {
			benchtime = strings.TrimSuffix(benchtime, "0x") + "x" // a tenth
		}
	}
	args := []string{"-test.run", "^$", "-test.bench", sec.bench, "-test.benchtime", benchtime, "-test.timeout", "1h"}
	if s.quick {
		args = append(args, "-test.short")
	}
	if sec.cpu != "" {
		args = append(args, "-test.cpu", sec.cpu)
	}
	return args
}

// trim leaves out what tells nothing: the course of the tests, and repeated
// headers.
func trim(output []byte) []byte {
	var kept bytes.Buffer
	seen := map[string]bool{}
	for line := range bytes.Lines(output) {
		text := strings.TrimSpace(string(line))
		header := strings.HasPrefix(text, "goos:") || strings.HasPrefix(text, "goarch:") || strings.HasPrefix(text, "pkg:") || strings.HasPrefix(text, "cpu:")
		progress := strings.HasPrefix(text, "===") && !strings.HasPrefix(text, attributePrefix)
		if text == "" || progress || header && seen[text] {
			continue
		}
		seen[text] = true
		kept.WriteString(strings.TrimRight(string(line), " \t\r\n") + "\n")
	}
	return kept.Bytes()
}

const environmentFile = "environment.txt"

// environment says where and how was measured, a line for each fact.
func environment(ctx context.Context, s settings) string {
	command := "go run ./cmd/results"
	if s.tags != "" {
		command += " -tags " + s.tags
	}
	if s.quick {
		command += " -quick"
	} else {
		command += " -count " + strconv.Itoa(s.count) + " -benchtime " + s.benchtime
	}
	if s.only != "" {
		command += " -only " + s.only
	}
	facts := [][2]string{
		{"command", command},
		{"date", time.Now().UTC().Format(time.DateOnly)},
		{"quick", strconv.FormatBool(s.quick)},
		{"CPU", cpuName()},
		{"cores", strconv.Itoa(runtime.NumCPU())},
		{"memory", find("/proc/meminfo", "MemTotal:")},
		{"OS", strings.Trim(find("/etc/os-release", "PRETTY_NAME="), `"`) + ", " + runtime.GOOS + "/" + runtime.GOARCH + ", kernel " + output(ctx, "uname", "-r")},
		{"Go", strings.TrimPrefix(output(ctx, "go", "version"), "go version ")},
		{"Redis", output(ctx, "redis-server", "--version")},
	}
	var text strings.Builder
	for _, fact := range facts {
		fmt.Fprintf(&text, "%s: %s\n", fact[0], fact[1])
	}
	for line := range strings.Lines(output(ctx, "go", "list", "-m", "all")) {
		if module, version, ok := strings.Cut(strings.TrimSpace(line), " "); ok && compared(module) {
			fmt.Fprintf(&text, "library: %s %s\n", module, version)
		}
	}
	return text.String()
}

// compared reports whether the version of a module says something about the
// results.
func compared(module string) bool {
	return slices.Contains([]string{
		"github.com/gin-gonic/gin",
		"github.com/redis/go-redis/v9",
		"github.com/sethvargo/go-limiter",
		"github.com/ulule/limiter/v3",
		"github.com/throttled/throttled/v2",
		"github.com/didip/tollbooth/v8",
		"github.com/go-chi/httprate",
		"golang.org/x/time",
		"github.com/JGLTechnologies/gin-rate-limit",
		"github.com/go-redis/redis_rate/v10",
	}, module)
}

func cpuName() string {
	_, name, _ := strings.Cut(find("/proc/cpuinfo", "model name"), ":")
	if name = strings.TrimSpace(name); name != "" {
		return name
	}
	return "unknown"
}

// find returns what follows prefix in the first line of a file that has it, or
// nothing.
func find(path, prefix string) string {
	text, _ := os.ReadFile(path)
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, prefix); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

func output(ctx context.Context, name string, args ...string) string {
	out, err := exec.CommandContext(ctx, name, args...).Output()
	if err != nil {
		return "not found"
	}
	return strings.TrimSpace(string(out))
}
