package ratelimittest_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTheREADMEShowsAStoreOfOnesOwnAsItIsTested(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	source, err := os.ReadFile("spread_test.go")
	require.NoError(t, err)
	_, store, found := strings.Cut(string(source), "\n\n// spread")
	require.True(t, found)
	assert.Contains(t, string(readme), "```go\n// spread"+store+"```\n")
}
