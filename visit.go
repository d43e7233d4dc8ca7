package ratelimit

import (
	"unsafe"

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
	values [3]string // what the header map points to
	used   int       // of text
	text   [96]byte  // the key, and the values of headers
}

// room is where text may be put together before it is kept.
func (v *visit) room() []byte { return v.text[v.used:v.used] }

// keep returns text as a string, in the visit as long as there is room.
func (v *visit) keep(text []byte) string {
	if len(text) > len(v.text)-v.used {
		return string(text)
	}
	kept := v.text[v.used:][:copy(v.text[v.used:], text)]
	v.used += len(kept)
	// Like strings.Builder: what has been used is never written again.
	return unsafe.String(unsafe.SliceData(kept), len(kept))
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
