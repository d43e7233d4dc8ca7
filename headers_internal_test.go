package ratelimit

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An sfItem is an Item of RFC 9651 that is a String, with Integers as
// parameters: what the draft wants.
type sfItem struct {
	name   string
	params map[string]int64
}

// parseSFList reads a List by the algorithms of RFC 9651 4.2.1, 4.2.3 and 4.2.5,
// and knows no other types.
func parseSFList(text string) (items []sfItem, err error) {
	for {
		item := sfItem{params: map[string]int64{}}
		if item.name, text, err = parseSFString(text); err != nil {
			return nil, err
		}
		for strings.HasPrefix(text, ";") {
			var key, number string
			text = strings.TrimLeft(text[1:], " ")
			key, text = span(text, "abcdefghijklmnopqrstuvwxyz0123456789_-.*")
			if key == "" || !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz*", rune(key[0])) || !strings.HasPrefix(text, "=") {
				return nil, fmt.Errorf("parameter %q before %q", key, text)
			}
			number, text = span(text[1:], "0123456789")
			if len(number) < 1 || len(number) > 15 {
				return nil, fmt.Errorf("%q is no Integer", number)
			}
			if item.params[key], err = strconv.ParseInt(number, 10, 64); err != nil {
				return nil, err
			}
		}
		items = append(items, item)
		if text = strings.TrimLeft(text, " \t"); text == "" {
			return items, nil
		}
		if text[0] != ',' {
			return nil, fmt.Errorf("%q where a comma belongs", text)
		}
		if text = strings.TrimLeft(text[1:], " \t"); text == "" {
			return nil, errors.New("a comma at the end")
		}
	}
}

func parseSFString(text string) (s, rest string, err error) {
	if !strings.HasPrefix(text, `"`) {
		return "", text, fmt.Errorf("%q does not begin a String", text)
	}
	for i := 1; i < len(text); i++ {
		switch ch := text[i]; {
		case ch == '\\':
			if i++; i == len(text) || text[i] != '"' && text[i] != '\\' {
				return "", text, fmt.Errorf("%q escapes what it must not", text)
			}
			s += text[i : i+1]
		case ch == '"':
			return s, text[i+1:], nil
		case ch < 0x20 || ch > 0x7e:
			return "", text, fmt.Errorf("%q is not ASCII that can be printed", text)
		default:
			s += string(rune(ch))
		}
	}
	return "", text, fmt.Errorf("%q does not end", text)
}

func span(text, letters string) (taken, rest string) {
	rest = strings.TrimLeft(text, letters)
	return text[:len(text)-len(rest)], rest
}

// FuzzStructuredField: whatever a policy is called and limits, its headers are
// structured fields that say so.
func FuzzStructuredField(f *testing.F) {
	f.Add("api", 10, int64(60_000), 5, int64(1500), uint8(0))
	f.Add(`a"b\c`, 1, int64(1), 1, int64(2), uint8(3))
	f.Add("caf\u00e9 100%", 2147483647, int64(1000), 7, int64(86_400_000), uint8(2))
	f.Add("\x00\r\n, \"x\";q=1", 3, int64(31_622_400_000), 3, int64(1), uint8(1))
	f.Fuzz(func(t *testing.T, name string, n1 int, ms1 int64, n2 int, ms2 int64, algorithm uint8) {
		limits := []Limit{Per(n1, time.Duration(ms1)*time.Millisecond), Per(n2, time.Duration(ms2)*time.Millisecond)}
		p, err := NewPolicy(name, Algorithm(algorithm), limits...)
		if err != nil {
			if p, err = NewPolicy(name, Algorithm(algorithm), limits[0]); err != nil {
				return
			}
		}
		policies, err := parseSFList(p.draft10)
		require.NoError(t, err, p.draft10)
		require.Len(t, policies, len(p.limits))
		for i, item := range policies {
			plain, err := url.PathUnescape(item.name)
			require.NoError(t, err)
			if len(p.limits) > 1 {
				plain = strings.TrimSuffix(plain, "-"+periodString(p.limits[i].Period))
			}
			assert.Equal(t, name, plain, "the name can be read from %s", item.name)
			assert.EqualValues(t, p.limits[i].Requests, item.params["q"])
			if w, ok := item.params["w"]; ok {
				assert.Positive(t, w)
				assert.Zero(t, p.memory[i].period%int64(time.Second))
			}
		}

		store := NewMemoryStore()
		results := make([]Result, len(p.limits))
		for _, cost := range []int{1, p.maxCost} {
			if p.algorithm == SlidingWindowLog {
				cost = min(cost, 1000)
			}
			require.NoError(t, store.Take(t.Context(), p, "k", cost, results))
			r := combine(results)
			items, err := parseSFList(draft10Items(p, results, r.Allowed))
			require.NoError(t, err)
			listed := map[string]sfItem{}
			for _, item := range items {
				listed[item.name] = item
			}
			require.Len(t, listed, len(items), "each limit has a name of its own")
			for i, result := range results {
				item, ok := listed[policies[i].name]
				assert.Equal(t, r.Allowed || !result.Allowed, ok, "all on a success, else those exceeded")
				if ok {
					assert.EqualValues(t, result.Remaining, item.params["r"])
					assert.Contains(t, item.params, "t")
				}
			}
		}
	})
}

// white-box: the names that users may choose need no escaping.
func TestNamesInDraft10AreStringsOfStructuredFields(t *testing.T) {
	for name, want := range map[string]string{
		"api":      `"api"`,
		`a"b\c`:    `"a\"b\\c"`,
		"POST /a":  `"POST /a"`,
		"é%\n\x7f": `"%C3%A9%25%0A%7F"`,
	} {
		assert.Equal(t, want, sfString(name))
	}
}
