//go:build !race

package ratelimit_test

const raceEnabled = false

// thinned is of how many combinations of hostile input one is tried.
const thinned = 1
