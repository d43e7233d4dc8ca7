package ratelimit

import (
	"strings"

	"github.com/gin-gonic/gin"
)

// A visit is what one request has met: the limiters that have decided on it,
// and the strictest of their results.
type visit struct {
	decided [2]*Limiter // and more, beyond the usual
	more    []*Limiter
	told    bool
	result  Result

	// One allocation for all that a request usually needs.
	values [3]string       // what the header map points to
	buf    [64]byte        // where the key is put together
	text   strings.Builder // the key, and the values of headers
}

// write keeps text as a string.
func (v *visit) write(text []byte) string {
	const headers = 40
	if v.text.Cap() == 0 {
		v.text.Grow(len(text) + headers)
	}
	start := v.text.Len()
	v.text.Write(text)
	return v.text.String()[start:]
}

type visitKey struct{}

// visitOf returns the visit of this request, a new one at its first limiter.
func visitOf(c *gin.Context) *visit {
	if known, ok := c.Get(visitKey{}); ok {
		return known.(*visit)
	}
	v := new(visit)
	c.Set(visitKey{}, v)
	return v
}

// enter notes that l decides now, and reports false if it has before.
func (v *visit) enter(l *Limiter) bool {
	for i, other := range v.decided {
		switch other {
		case l:
			return false
		case nil:
			v.decided[i] = l
			return true
		}
	}
	for _, other := range v.more {
		if other == l {
			return false
		}
	}
	v.more = append(v.more, l)
	return true
}

// FromContext returns the strictest result of the limiters that c has passed,
// the one in the response headers; false if there is none (uncounted, dry-run,
// or the store failed).
func FromContext(c *gin.Context) (Result, bool) {
	if known, ok := c.Get(visitKey{}); ok {
		v := known.(*visit)
		return v.result, v.told
	}
	return Result{}, false
}
