//go:build race

package ratelimit_test

const raceEnabled = true

// thinned is of how many combinations of hostile input one is tried: not all
// under the race detector, which makes everything slow.
const thinned = 5
