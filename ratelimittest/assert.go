package ratelimittest

import (
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// AssertAllowed fails the test if resp is a denial.
func AssertAllowed(tb testing.TB, resp *http.Response) {
	tb.Helper()
	if resp.StatusCode == http.StatusTooManyRequests {
		tb.Errorf("want a request that is allowed, got %s with Retry-After: %s", status(resp), resp.Header.Get("Retry-After"))
	}
}

// AssertDenied fails the test if resp is not a denial as clients and caches
// need it: 429 with Retry-After in whole seconds, at least 1, and
// Cache-Control: no-store.
func AssertDenied(tb testing.TB, resp *http.Response) {
	tb.Helper()
	if resp.StatusCode != http.StatusTooManyRequests {
		tb.Errorf("want a request that is denied, got %s", status(resp))
		return
	}
	if n, ok := retryAfter(resp); !ok || n < 1 {
		tb.Errorf("want Retry-After in whole seconds, at least 1, got %q", resp.Header.Values("Retry-After"))
	}
	if cache := resp.Header.Get("Cache-Control"); !strings.Contains(strings.ToLower(cache), "no-store") {
		tb.Errorf("want Cache-Control: no-store, since no cache may store a 429, got %q", cache)
	}
}

// AssertRetryAfter fails the test if resp does not ask to wait for d, rounded
// up to whole seconds, at least 1.
func AssertRetryAfter(tb testing.TB, resp *http.Response, d time.Duration) {
	tb.Helper()
	want := max(1, int64((d+time.Second-1)/time.Second))
	if n, ok := retryAfter(resp); !ok || n != want {
		tb.Errorf("want Retry-After: %d, got %q", want, resp.Header.Values("Retry-After"))
	}
}

// AssertRemaining fails the test if resp does not say that n requests remain,
// in the headers of any style. Where it lists several limits, the least counts.
func AssertRemaining(tb testing.TB, resp *http.Response, n int) {
	tb.Helper()
	got, header := remaining(resp.Header)
	switch {
	case header == "":
		tb.Errorf("want %d remaining, but %s has no rate limit header; does its route come after the limiter, and does WithHeaders send any?", n, status(resp))
	case got != n:
		tb.Errorf("want %d remaining, got %s", n, header)
	}
}

func status(resp *http.Response) string {
	return strconv.Itoa(resp.StatusCode) + " " + http.StatusText(resp.StatusCode)
}

// retryAfter returns Retry-After where it is digits alone.
func retryAfter(resp *http.Response) (n int64, ok bool) {
	values := resp.Header.Values("Retry-After")
	if len(values) != 1 || strings.Trim(values[0], "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(values[0], 10, 64)
	return n, err == nil
}

// draftRemaining finds what remains in an item of HeadersDraft10.
var draftRemaining = regexp.MustCompile(`;r=(\d+)`)

// remaining returns the number of the header found, and the header: "" where
// there is none.
func remaining(h http.Header) (n int, header string) {
	for _, name := range []string{"X-RateLimit-Remaining", "RateLimit-Remaining"} {
		if value := h.Get(name); value != "" {
			n, err := strconv.Atoi(value)
			if err != nil {
				n = -1
			}
			return n, name + ": " + value
		}
	}
	list := strings.Join(h.Values("RateLimit"), ", ")
	n = -1
	for _, item := range draftRemaining.FindAllStringSubmatch(list, -1) {
		if r, err := strconv.Atoi(item[1]); err == nil && (n < 0 || r < n) {
			n = r
		}
	}
	if list == "" {
		return n, ""
	}
	return n, "RateLimit: " + list
}
