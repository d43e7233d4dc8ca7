// Command mutate shows that the tests would notice: it puts one fault at a time
// into a copy of the tree and runs the tests that should fail of it.
//
//	go run ./.ci/mutate            every fault, some minutes
//	go run ./.ci/mutate -only lua  those whose file or description has "lua"
//
// It exits with 1 if the tests pass with a fault in the code, if a fault does
// not compile, or if the text it replaces is not there exactly once. A run of
// every fault is recorded in docs/mutations.md.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A fault is a change of one place in one file, and the tests that must fail.
type fault struct {
	what string
	file string
	old  string
	new  string
	run  string // as for go test -run
}

func main() {
	only := flag.String("only", "", "the faults whose file or description has this text")
	flag.Parse()
	// Interrupted, it ends what it has started.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := mutate(ctx, *only)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

// workers is how many faults are tried at the same time, each in a copy of its
// own.
const workers = 3

func mutate(ctx context.Context, only string) error {
	var dirs [workers]string
	for i := range dirs {
		dir, err := os.MkdirTemp("", "mutate")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		if err := copyTree(dir); err != nil {
			return err
		}
		dirs[i] = dir
	}
	chosen := slices.DeleteFunc(slices.Clone(faults), func(f fault) bool {
		return !strings.Contains(f.file+" "+f.what, only)
	})
	var patterns []string
	for _, f := range chosen {
		patterns = append(patterns, f.run)
	}
	slices.Sort(patterns)
	if out, _, err := test(ctx, dirs[0], strings.Join(slices.Compact(patterns), "|")); ctx.Err() != nil {
		return ctx.Err()
	} else if err != nil {
		return fmt.Errorf("the tests fail without any fault:\n%s", out)
	}
	began := time.Now()
	rows := make([]string, len(chosen))
	var wrong []string
	var mu sync.Mutex
	next := 0
	var wg sync.WaitGroup
	for _, dir := range dirs {
		wg.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if i >= len(chosen) || ctx.Err() != nil {
					return
				}
				f := chosen[i]
				verdict := try(ctx, dir, f)
				mu.Lock()
				rows[i] = fmt.Sprintf("| %s | `%s` | %s |", f.what, f.file, verdict)
				fmt.Println(rows[i])
				if !strings.HasPrefix(verdict, "`") { // the name of a test
					wrong = append(wrong, f.file+": "+f.what+": "+verdict)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%d of %d faults go unnoticed:\n%s", len(wrong), len(chosen), strings.Join(wrong, "\n"))
	}
	fmt.Printf("%d faults, each noticed\n", len(chosen))
	if only != "" {
		return nil
	}
	if err := os.MkdirAll("docs", 0o755); err != nil {
		return err
	}
	return os.WriteFile("docs/mutations.md", fmt.Appendf(nil, `# Last mutation run

Written by %[1]sgo run ./.ci/mutate%[1]s (%[2]s, %.0[3]f s). Each row is a fault that was put into a copy of the code, alone,
and the first test that failed of it.

| fault | in | noticed by |
|---|---|---|
%[4]s
`, "`", time.Now().Format(time.DateOnly), time.Since(began).Seconds(), strings.Join(rows, "\n")), 0o644)
}

// copyTree copies what the tests of the root package need.
func copyTree(dir string) error {
	var files []string
	for _, pattern := range []string{"go.mod", "go.sum", "README.md", "*.go", "lua/*.lua", "ratelimittest/*.go"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		files = append(files, found...)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		target := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(target, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

var (
	failed  = regexp.MustCompile(`(?m)^\s*--- FAIL: (\w+)`)
	running = regexp.MustCompile(`(?m)^=== RUN   (\w+)`)
)

// try puts f into the tree, tests, and takes it out again.
func try(ctx context.Context, dir string, f fault) (verdict string) {
	name := filepath.Join(dir, f.file)
	text, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	if n := bytes.Count(text, []byte(f.old)); n != 1 {
		return fmt.Sprintf("the text to replace is there %d times", n)
	}
	mutant := bytes.Replace(text, []byte(f.old), []byte(f.new), 1)
	if err := os.WriteFile(name, mutant, 0o644); err != nil {
		return err.Error()
	}
	defer func() { _ = os.WriteFile(name, text, 0o644) }()
	out, ran, err := test(ctx, dir, f.run)
	switch {
	case err == nil:
		return "**survived**"
	case !ran:
		return "does not compile: " + strings.ReplaceAll(out, "\n", " ")
	}
	if match := failed.FindStringSubmatch(out); match != nil {
		return "`" + match[1] + "`"
	}
	// A panic in a goroutine, or a test that did not end.
	if all := running.FindAllStringSubmatch(out, -1); len(all) > 0 {
		return "`" + all[len(all)-1][1] + "`"
	}
	return "failed without naming a test: " + strings.ReplaceAll(out, "\n", " ")
}

// test runs tests in dir. Whatever they leave running is ended. It reports
// whether they ran at all.
func test(ctx context.Context, dir, run string) (out string, ran bool, err error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-v", "-failfast", "-vet=off", "-timeout=150s", "-run", run, ".",
		"-rapid.shrinktime=1s", "-rapid.nofailfile")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CI=true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var buf bytes.Buffer
	cmd.Stdout, cmd.Stderr = &buf, &buf
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		return "", false, err
	}
	err = cmd.Wait()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	out = buf.String()
	if strings.Contains(out, "no tests to run") {
		return out, false, fmt.Errorf("no test matches %q", run)
	}
	return out, !strings.Contains(out, "[build failed]") && !strings.Contains(out, "[setup failed]"), err
}
