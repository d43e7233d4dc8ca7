package ratelimit_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/aed328ba/ratelimit"
	"github.com/gin-gonic/gin"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.TestMode)
	goleak.VerifyTestMain(m)
}

// engine returns a Gin engine with a handler for GET / behind the middlewares.
func engine(use ...gin.HandlerFunc) *gin.Engine {
	r := gin.New()
	r.Use(use...)
	r.GET("/", func(c *gin.Context) { c.String(http.StatusOK, "ok") })
	return r
}

// get sends GET / with headers given as "Name: value", or a peer as "peer: address".
func get(r http.Handler, headers ...string) *http.Response {
	return send(r, http.MethodGet, "/", headers...)
}

func send(r http.Handler, method, target string, headers ...string) *http.Response {
	req := httptest.NewRequest(method, target, nil)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "peer" {
			req.RemoteAddr = value
			continue
		}
		req.Header.Add(name, value)
	}
	w := httptest.NewRecorder()
	r.ServeHTTP(w, req)
	return w.Result()
}

// recorder keeps the events of a limiter.
type recorder struct {
	mu     sync.Mutex
	events []ratelimit.Event
}

func (r *recorder) observe(_ context.Context, e ratelimit.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

// logTo returns a logger, and what it has written.
func logTo(t *testing.T) (*slog.Logger, func() string) {
	t.Helper()
	var mu sync.Mutex
	var buf bytes.Buffer
	w := writerFunc(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return buf.Write(p)
	})
	return slog.New(slog.NewTextHandler(w, nil)), func() string {
		mu.Lock()
		defer mu.Unlock()
		return buf.String()
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func atoi(text string) int { return must(strconv.Atoi(text)) }
