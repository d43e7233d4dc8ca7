package ratelimittest

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

// A Client sends requests to an application from one IP address, without a
// network: to a [*github.com/gin-gonic/gin.Engine] or any other [http.Handler].
type Client struct {
	tb      testing.TB
	handler http.Handler
	peer    string
	header  http.Header
}

// NewClient returns a client of app with the address 192.0.2.1. What it cannot
// do fails the test.
func NewClient(tb testing.TB, app http.Handler) *Client {
	tb.Helper()
	return &Client{tb: tb, handler: app, peer: "192.0.2.1:1234", header: http.Header{}}
}

// From returns a client with another IP address, IPv4 or IPv6, and the same
// headers.
func (c *Client) From(ip string) *Client {
	c.tb.Helper()
	if net.ParseIP(ip) == nil {
		c.tb.Fatalf("ratelimittest: From: %q is not an IP address", ip)
	}
	other := *c
	other.peer = net.JoinHostPort(ip, "1234")
	return &other
}

// With returns a client that sends a header with each request, such as an API
// key or a cookie.
func (c *Client) With(name, value string) *Client {
	other := *c
	other.header = c.header.Clone()
	other.header.Set(name, value)
	return &other
}

// Get sends GET target, as in "/login?next=/", and returns the response, whose
// body is in memory and needs no closing.
func (c *Client) Get(target string) *http.Response {
	return c.Send(http.MethodGet, target)
}

// Send sends a request without a body.
func (c *Client) Send(method, target string) *http.Response {
	return c.Do(httptest.NewRequestWithContext(context.Background(), method, target, nil))
}

// Do sends req, which [httptest.NewRequest] has made, with the address and the
// headers of the client.
func (c *Client) Do(req *http.Request) *http.Response {
	req.RemoteAddr = c.peer
	for name, values := range c.header {
		req.Header[name] = values
	}
	w := httptest.NewRecorder()
	c.handler.ServeHTTP(w, req)
	return w.Result()
}

// maxExhaust is how many requests Exhaust sends before it gives up.
const maxExhaust = 10_000

// Exhaust sends requests until one is denied, and returns how many were not:
// on a fresh limit, the limit. It fails the test where 10,000 requests meet no
// limit.
func (c *Client) Exhaust(method, target string) int {
	c.tb.Helper()
	for n := range maxExhaust {
		resp := c.Send(method, target)
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusTooManyRequests {
			return n
		}
	}
	c.tb.Fatalf("ratelimittest: Exhaust: %d requests for %s %s were not limited; does its route come after the limiter, and is the limit lower than that?", maxExhaust, method, target)
	return maxExhaust
}
