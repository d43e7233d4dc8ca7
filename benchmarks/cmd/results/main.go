// Command results runs the benchmarks and writes RESULTS.md with their charts.
//
//	cd benchmarks && go run ./cmd/results          everything, in about half an hour
//	cd benchmarks && go run ./cmd/results -quick   whether it works, in about 2
//	cd benchmarks && go run ./cmd/results -from raw   the tables again, of what was measured
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
)

type settings struct {
	count     int
	benchtime string
	quick     bool
	tags      string
	only      string
	raw       string
}

func main() {
	var s settings
	var from string
	flag.IntVar(&s.count, "count", 6, "how often each benchmark is run")
	flag.StringVar(&s.benchtime, "benchtime", "200ms", "how long each run of a benchmark takes")
	flag.BoolVar(&s.quick, "quick", false, "run everything once and briefly: the numbers mean nothing")
	flag.StringVar(&s.tags, "tags", "", "build tags for go test")
	flag.StringVar(&s.only, "only", "", "run only these sections, separated by commas, and keep what is there of the others: "+strings.Join(sectionNames(), ", "))
	flag.StringVar(&s.raw, "raw", "raw", "where the output of go test is kept")
	flag.StringVar(&from, "from", "", "run nothing: make the tables of the output kept in this directory")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, s, from)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "results:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, s settings, from string) error {
	if from == "" {
		if err := measure(ctx, s); err != nil {
			return err
		}
		from = s.raw
	}
	d, err := load(from)
	if err != nil {
		return err
	}
	if err := writeCharts(d, "charts"); err != nil {
		return err
	}
	return os.WriteFile("RESULTS.md", []byte(report(d)), 0o644)
}
