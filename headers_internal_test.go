package ratelimit

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

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
