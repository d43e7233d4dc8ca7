package ratelimit

import (
	"encoding/binary"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// FuzzParseRoute: a route that is accepted begins with a slash and is read the
// same from what it prints as.
func FuzzParseRoute(f *testing.F) {
	for _, seed := range []string{"POST /login", "/search", "/admin/*", "get /a/:id", `PUT /v1/a\:run`, "/a//b", "/*", "GTE /", "/a/../b/*", " / "} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, below, err := parseRoute(text)
		if err != nil {
			return
		}
		assert.True(t, strings.HasPrefix(r.pattern, "/"))
		printed := r.String()
		if below {
			printed += "*"
		}
		again, belowAgain, err := parseRoute(printed)
		require.NoError(t, err)
		assert.Equal(t, r, again)
		assert.Equal(t, below, belowAgain)
	})
}

// FuzzReadTag: what is read of a tag is what reflect reads, and no less.
func FuzzReadTag(f *testing.F) {
	for _, seed := range []string{`route:"GET /a" ratelimit:"5/m"`, `json:"-"`, `route: "a"`, `a:"b"c:"d"`, `route:"\""`, "a\x01:\"b\"", `:"x"`, `route:"a" route:"b"`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, tag string) {
		pairs, err := readTag(reflect.StructTag(tag))
		if err != nil {
			assert.Nil(t, pairs)
			return
		}
		for name, value := range pairs {
			got, ok := reflect.StructTag(tag).Lookup(name)
			assert.True(t, ok, name)
			assert.Equal(t, got, value)
		}
		for _, name := range []string{tagRoute, tagRule} {
			_, ok := reflect.StructTag(tag).Lookup(name)
			_, read := pairs[name]
			assert.Equal(t, ok, read, name)
		}
	})
}

// FuzzReadReply: whatever stands in for Redis, its answer is a decision with
// numbers in range or an error, never a panic.
func FuzzReadReply(f *testing.F) {
	numbers := func(n ...int64) (data []byte) {
		for _, i := range n {
			data = binary.BigEndian.AppendUint64(data, uint64(i))
		}
		return data
	}
	for a := range algorithmCount {
		f.Add(uint8(a), uint16(5), uint16(1), numbers(1_900_000_000_000_000, 1, 1_900_000_000_000_000, 2, 3))
		f.Add(uint8(a), uint16(5), uint16(5), numbers(1_900_000_000_000_000, 0, 1_900_000_000_000_000, 5, 0))
		f.Add(uint8(a), uint16(1), uint16(1), numbers(0, 0, -1, 0, 0))
	}
	f.Fuzz(func(t *testing.T, algorithm uint8, requests, cost uint16, data []byte) {
		limit := PerMinute(max(1, int(requests)))
		p, err := NewPolicy("n", Algorithm(algorithm)%algorithmCount, limit)
		require.NoError(t, err)
		var reply []any
		for ; len(data) >= 8; data = data[8:] {
			reply = append(reply, int64(binary.BigEndian.Uint64(data)))
		}
		var r [1]Result
		if p.readReply(reply, int64(min(max(1, int(cost)), limit.Requests)), r[:]) != nil {
			return
		}
		assert.GreaterOrEqual(t, r[0].Remaining, 0)
		assert.LessOrEqual(t, r[0].Remaining, limit.Requests)
	})
}
