package ratelimit

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
)

// A HeaderStyle is a set of response headers that tells clients where they
// stand. Durations are whole seconds, rounded up, so that a client that waits
// them does not come early.
type HeaderStyle uint8

const (
	// HeadersXRateLimit is the default, in the form that GitHub and most
	// others use: X-RateLimit-Limit, X-RateLimit-Remaining and
	// X-RateLimit-Reset, the time when the client has its full quota again in
	// seconds since the Unix epoch.
	//
	// Of several limits the three are those of the one with least remaining;
	// of several limiters, those of the strictest.
	HeadersXRateLimit HeaderStyle = iota

	// HeadersXRateLimitDelta is the same with X-RateLimit-Reset as the number
	// of seconds until then.
	HeadersXRateLimitDelta

	// HeadersDraft6 is revision 6 of draft-ietf-httpapi-ratelimit-headers:
	// RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset (in seconds
	// from now), and RateLimit-Policy with every limit ("10;w=1, 50;w=60").
	HeadersDraft6

	// HeadersDraft10 is revision 10 of the same draft, structured fields (RFC
	// 9651): RateLimit-Policy ("api";q=100;w=60) and RateLimit
	// ("api";r=50;t=30), with an item for each limit. r is what remains, t how
	// many seconds until it is all there again; on a denial only those limits
	// are listed that were exceeded, with the wait as t. The name of a policy
	// is that of [WithName], followed by its window where it has several.
	HeadersDraft10

	// HeadersNone sends none of them. A denial still has Retry-After.
	HeadersNone

	headerStyleCount
)

var headerNames = [headerStyleCount][]string{
	HeadersXRateLimit:      {"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"},
	HeadersXRateLimitDelta: {"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"},
	HeadersDraft6:          {"Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset", policyHeader},
	HeadersDraft10:         {policyHeader, "Ratelimit"},
}

const policyHeader = "Ratelimit-Policy"

// HeaderNames returns the names of the headers that a limiter of these styles
// may set, Retry-After among them, for Access-Control-Expose-Headers: without
// it browsers hide them from scripts. Without an argument it returns those of
// the default style.
func HeaderNames(styles ...HeaderStyle) []string {
	if len(styles) == 0 {
		styles = []HeaderStyle{HeadersXRateLimit}
	}
	names := []string{"Retry-After"}
	for _, s := range styles {
		if s < headerStyleCount {
			names = append(names, headerNames[s]...)
		}
	}
	return names
}

func validateStyles(styles []HeaderStyle) error {
	if len(styles) == 0 {
		return fmt.Errorf("no style given; use HeadersNone for no headers")
	}
	var seen []string
	for _, s := range styles {
		if s >= headerStyleCount {
			return fmt.Errorf("unknown style HeaderStyle(%d)", s)
		}
		if s == HeadersNone && len(styles) > 1 {
			return fmt.Errorf("HeadersNone cannot be combined with other styles")
		}
		for _, name := range headerNames[s] {
			if slices.Contains(seen, name) {
				return fmt.Errorf("two of the styles set %s; keep one of them", name)
			}
			seen = append(seen, name)
		}
	}
	return nil
}

// tell writes the headers, and keeps the numbers for FromContext, unless the
// limiters before this one have already told of a stricter limit.
func (l *Limiter) tell(c *gin.Context, v *visit, p *Policy, each []Result, r Result) {
	strictest := !v.told || !r.Allowed || r.Remaining < v.result.Remaining
	h := c.Writer.Header()
	for _, style := range l.styles {
		switch style {
		case HeadersXRateLimit:
			if strictest {
				reset := l.now().Add(r.ResetAfter)
				v.setTriple(h, headerNames[style], p, r, reset.Unix()+roundUp(int64(reset.Nanosecond())))
			}
		case HeadersXRateLimitDelta:
			if strictest {
				v.setTriple(h, headerNames[style], p, r, seconds(r.ResetAfter))
			}
		case HeadersDraft6:
			if strictest {
				// Retry-After must not be earlier than the reset.
				reset := r.ResetAfter
				if !r.Allowed {
					reset = r.RetryAfter
				}
				v.setTriple(h, headerNames[style], p, r, seconds(reset))
			}
			appendList(h, policyHeader, p.draft6)
		case HeadersDraft10:
			appendList(h, policyHeader, p.draft10)
			if !r.Allowed {
				h.Del("Ratelimit")
			}
			appendList(h, "Ratelimit", draft10Items(p, each, r.Allowed))
		}
	}
	if strictest {
		v.result = r
	}
	v.told = true
}

// setTriple sets limit, remaining and reset. The slices that http.Header wants
// are part of the visit, the first time.
func (v *visit) setTriple(h http.Header, names []string, p *Policy, r Result, reset int64) {
	text := strconv.AppendInt(v.room(), quotaOf(p.algorithm, r.Limit), 10)
	a := len(text)
	text = strconv.AppendInt(text, int64(r.Remaining), 10)
	b := len(text)
	all := v.keep(strconv.AppendInt(text, reset, 10))
	values := &v.values
	if values[0] != "" {
		values = new([3]string)
	}
	*values = [3]string{all[:a], all[a:b], all[b:]}
	for i := range values {
		h[names[i]] = values[i : i+1 : i+1]
	}
}

// quotaOf is the most that can be admitted at once: what a client sees as the
// limit that "remaining" counts down from.
func quotaOf(a Algorithm, l Limit) int64 {
	if a == TokenBucket {
		return int64(l.capacity())
	}
	return int64(l.Requests)
}

func appendList(h http.Header, name, items string) {
	if items == "" {
		return
	}
	if before := h[name]; len(before) > 0 {
		items = strings.Join(before, ", ") + ", " + items
	}
	h[name] = []string{items}
}

// draft6Policy returns the limits as RateLimit-Policy of draft 6 has them. It
// can only express whole seconds.
func draft6Policy(p *Policy) string {
	var items []string
	for i := range p.limits {
		if w, whole := p.memory[i].window(); whole {
			items = append(items, fmt.Sprintf("%d;w=%d", p.memory[i].quota, w))
		}
	}
	return strings.Join(items, ", ")
}

// draft10Policy returns the limits as RateLimit-Policy of draft 10 has them,
// and the name of each. The window, which is optional, is left out where it is
// not of whole seconds.
func draft10Policy(p *Policy) (items string, names []string) {
	var list []string
	for i, l := range p.limits {
		name := p.name
		if len(p.limits) > 1 {
			name += "-" + periodString(l.Period)
		}
		names = append(names, sfString(name))
		item := fmt.Sprintf("%s;q=%d", names[i], p.memory[i].quota)
		if w, whole := p.memory[i].window(); whole {
			item += fmt.Sprintf(";w=%d", w)
		}
		list = append(list, item)
	}
	return strings.Join(list, ", "), names
}

// window is the time in which the quota comes back, in seconds.
func (b *budget) window() (n int64, whole bool) {
	window := time.Duration(b.period) * b.tick
	if b.algorithm == TokenBucket {
		window = refillTime(b.limit)
	}
	return int64(window / time.Second), window%time.Second == 0
}

func draft10Items(p *Policy, each []Result, allowed bool) string {
	var text []byte
	for i, r := range each {
		if !allowed && r.Allowed {
			continue
		}
		t := r.ResetAfter
		if !r.Allowed {
			t = r.RetryAfter
		}
		if len(text) > 0 {
			text = append(text, ", "...)
		}
		text = append(text, p.draft10Names[i]...)
		text = strconv.AppendInt(append(text, ";r="...), int64(r.Remaining), 10)
		text = strconv.AppendInt(append(text, ";t="...), seconds(t), 10)
	}
	return string(text)
}

// sfString writes a name as a String of RFC 9651 3.3.3: printable ASCII in
// quotes. What is neither is percent-encoded, which keeps names distinct.
func sfString(name string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(name) {
		switch ch := name[i]; {
		case ch == '"' || ch == '\\':
			b.WriteByte('\\')
			b.WriteByte(ch)
		case ch < ' ' || ch > '~' || ch == '%':
			fmt.Fprintf(&b, "%%%02X", ch)
		default:
			b.WriteByte(ch)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// seconds returns d in whole seconds, rounded up, at least 0.
func seconds(d time.Duration) int64 {
	d = max(0, d)
	return int64(d/time.Second) + roundUp(int64(d%time.Second))
}

// waitSeconds returns d as Retry-After has it, whole seconds (RFC 9110 10.2.3),
// at least 1: with 0 clients hammer.
func waitSeconds(d time.Duration) int64 { return max(1, seconds(d)) }

func setRetryAfter(h http.Header, d time.Duration) {
	h["Retry-After"] = []string{strconv.FormatInt(waitSeconds(d), 10)}
}

// Values that every refusal sets. As in Gin they are one slice for all.
var (
	noStore     = []string{"no-store"}
	problemType = []string{"application/problem+json"}
)

// refuse ends the chain with a status, which no cache may store, and returns
// the headers for what else belongs there.
func refuse(c *gin.Context, status int) http.Header {
	c.Abort()
	c.Status(status)
	h := c.Writer.Header()
	h["Cache-Control"] = noStore
	return h
}

// deny answers 429 (RFC 6585 section 4).
func (l *Limiter) deny(c *gin.Context, r Result, possible bool) {
	h := refuse(c, http.StatusTooManyRequests)
	if possible {
		setRetryAfter(h, r.RetryAfter)
	}
	if l.denied != nil {
		l.denied(c)
		return
	}
	var buf [160]byte
	detail := buf[:0]
	if possible {
		detail = r.Limit.append(append(detail, "The rate limit of "...))
		wait := waitSeconds(r.RetryAfter)
		detail = strconv.AppendInt(append(detail, " is exceeded. Try again in "...), wait, 10)
		detail = append(detail, " seconds"...)
		if wait == 1 {
			detail = detail[:len(detail)-1]
		}
		detail = append(detail, '.')
	} else {
		detail = r.Limit.append(append(detail, "The request costs more than the rate limit of "...))
		detail = append(detail, " can ever admit."...)
	}
	writeProblem(c, detail)
}

// writeProblem writes problem details (RFC 9457) of the status that was set.
// The detail is of our own words and numbers and needs no escaping.
func writeProblem(c *gin.Context, detail []byte) {
	status := c.Writer.Status()
	body := append(make([]byte, 0, 256), `{"type":"about:blank","title":"`...)
	body = append(body, http.StatusText(status)...)
	body = strconv.AppendInt(append(body, `","status":`...), int64(status), 10)
	body = append(append(body, `,"detail":"`...), detail...)
	body = append(body, `"}`...)
	c.Writer.Header()["Content-Type"] = problemType
	if _, err := c.Writer.Write(body); err != nil {
		_ = c.Error(err)
	}
}
