// Package benchmarks compares ratelimit with other limiters on the same work
// in one run. It holds nothing but tests and benchmarks; the command that runs
// them and writes RESULTS.md is in cmd/results.
package benchmarks
