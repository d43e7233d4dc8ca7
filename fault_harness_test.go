//go:build fault

package ratelimit_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aed328ba/ratelimit"
	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The instances of an application that the fault run asks: processes of their
// own, each a Gin server with a limiter for each algorithm under FailClosed and
// under FailLocal, all on one Redis.
const (
	faultLimit   = 20 // a day: nothing comes back during a run
	faultTimeout = 100 * time.Millisecond
	faultServers = 3
)

var faultPolicies = []ratelimit.FailurePolicy{ratelimit.FailClosed, ratelimit.FailLocal}

func faultPath(p ratelimit.FailurePolicy, a ratelimit.Algorithm) string {
	return "/" + p.String() + "/" + a.String()
}

// A topology is how an instance finds Redis.
type topology struct {
	Kind  string // single, sentinel or cluster
	Addrs []string
}

func (o topology) client() redis.UniversalClient {
	switch o.Kind {
	case "sentinel":
		return redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: o.Addrs, ContextTimeoutEnabled: true})
	case "cluster":
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: o.Addrs, ContextTimeoutEnabled: true})
	default:
		return redis.NewClient(&redis.Options{Addr: o.Addrs[0], ContextTimeoutEnabled: true})
	}
}

const serverEnv = "RATELIMIT_FAULT_SERVER"

// TestFaultServer is an instance, where the harness has started this test
// binary as one. It serves until its standard input ends, which it also does
// when the harness has died.
func TestFaultServer(t *testing.T) {
	text := os.Getenv(serverEnv)
	if text == "" {
		t.Skip("only in a process that the fault run starts")
	}
	var redisAt topology
	require.NoError(t, json.Unmarshal([]byte(text), &redisAt))
	store := ratelimit.NewRedisStore(redisAt.client())
	r := gin.New()
	for _, policy := range faultPolicies {
		for _, algorithm := range algorithms {
			limit := ratelimit.New(
				ratelimit.WithStore(store), ratelimit.WithName(policy.String()+"/"+algorithm.String()),
				ratelimit.WithAlgorithm(algorithm), ratelimit.WithLimit(ratelimit.PerDay(faultLimit)),
				ratelimit.WithKeyFunc(ratelimit.KeyByHeader("X-Key")), ratelimit.WithFailure(policy), ratelimit.WithTimeout(faultTimeout),
			)
			r.GET(faultPath(policy, algorithm), limit, func(c *gin.Context) { c.Status(http.StatusOK) })
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = http.Serve(l, r) }()
	fmt.Println("listening on", l.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

type faultServer struct {
	url string
	cmd *exec.Cmd

	mu     sync.Mutex
	stderr bytes.Buffer
}

func (s *faultServer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stderr.Write(p)
}

func (s *faultServer) log() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stderr.String()
}

func startFaultServer(t *testing.T, redisAt topology) *faultServer {
	t.Helper()
	config, err := json.Marshal(redisAt)
	require.NoError(t, err)
	s := &faultServer{cmd: exec.Command(os.Args[0], "-test.run=^TestFaultServer$", "-test.v=false")}
	s.cmd.Env = append(os.Environ(), serverEnv+"="+string(config))
	s.cmd.Stderr = s
	stdin, err := s.cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := s.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, s.cmd.Start())
	t.Cleanup(func() {
		_ = stdin.Close()
		end := time.AfterFunc(5*time.Second, func() { _ = s.cmd.Process.Kill() })
		defer end.Stop()
		assert.NoError(t, s.cmd.Wait(), "an instance ended by itself or had to be killed")
		for _, word := range []string{"panic", "DATA RACE", "fatal error"} {
			assert.NotContains(t, s.log(), word)
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err, s.log())
	s.url = "http://" + strings.TrimSpace(strings.TrimPrefix(line, "listening on "))
	return s
}

// A target is what one key of the load is about.
type target struct {
	policy    ratelimit.FailurePolicy
	algorithm ratelimit.Algorithm
	key       string
}

// A tally is what became of the requests of one target.
type tally struct {
	shared   int   // admitted by Redis
	local    []int // admitted by each instance alone
	degraded int   // decided without Redis, or answered with 503
}

// A load sends requests until it is stopped. Its keys change as it goes, so
// that at any moment some are used up, some in part, and some not at all.
type load struct {
	servers []*faultServer
	client  *http.Client
	prefix  string
	began   time.Time
	stopped chan struct{}
	wg      sync.WaitGroup

	mu       sync.Mutex
	keys     map[target]*tally
	status   map[int]int
	times    []time.Duration
	failures []string
}

const (
	loadWorkers   = 8
	keysPerSecond = 60
	keysAtOnce    = 60
)

func startLoad(servers []*faultServer, prefix string) *load {
	l := &load{
		servers: servers, prefix: prefix, began: time.Now(), stopped: make(chan struct{}),
		client: &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 2 * loadWorkers}},
		keys:   map[target]*tally{}, status: map[int]int{},
	}
	for range loadWorkers {
		l.wg.Go(func() {
			for {
				select {
				case <-l.stopped:
					return
				case <-time.After(time.Millisecond):
				}
				l.ask(l.pick())
			}
		})
	}
	return l
}

// pick returns a recent target, or now and then an old one.
func (l *load) pick() target {
	first := int(time.Since(l.began).Seconds() * keysPerSecond)
	n := first + rand.IntN(keysAtOnce)
	if rand.IntN(5) == 0 {
		n = rand.IntN(first + 1)
	}
	return l.target(n)
}

func (l *load) target(n int) target {
	return target{faultPolicies[n%2], algorithms[n/2%len(algorithms)], fmt.Sprintf("%s-%d", l.prefix, n)}
}

// ask sends one request to any instance, and reports whether Redis decided and
// whether it was admitted.
func (l *load) ask(at target) (shared, admitted bool) {
	i := rand.IntN(len(l.servers))
	began := time.Now()
	resp, err := get1(l.client, l.servers[i].url, at)
	took := time.Since(began)

	l.mu.Lock()
	defer l.mu.Unlock()
	l.times = append(l.times, took)
	if err != nil {
		l.failures = append(l.failures, err.Error())
		return false, false
	}
	l.status[resp.StatusCode]++
	t := l.keys[at]
	if t == nil {
		t = &tally{local: make([]int, len(l.servers))}
		l.keys[at] = t
	}
	shared = resp.Header.Get("X-RateLimit-Limit") != ""
	admitted = resp.StatusCode == http.StatusOK
	if !shared {
		t.degraded++
	}
	switch {
	case admitted && shared:
		t.shared++
	case admitted && at.policy == ratelimit.FailLocal:
		t.local[i]++
	case resp.StatusCode == http.StatusTooManyRequests && (shared || at.policy == ratelimit.FailLocal):
	case resp.StatusCode == http.StatusServiceUnavailable && at.policy == ratelimit.FailClosed && resp.Header.Get("Retry-After") == "1":
	default:
		l.failures = append(l.failures, fmt.Sprintf("%v: status %d, headers %v", at, resp.StatusCode, resp.Header))
	}
	return shared, admitted
}

func get1(client *http.Client, url string, at target) (*http.Response, error) {
	req, err := http.NewRequest(http.MethodGet, url+faultPath(at.policy, at.algorithm), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("X-Key", at.key)
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return resp, err
}

// healthy reports whether Redis decides on every limiter of every instance, for
// keys on every node.
func (l *load) healthy() bool {
	for _, s := range l.servers {
		for n := range 24 {
			at := l.target(n)
			at.key = fmt.Sprintf("health-%d-%d", time.Now().UnixNano(), n) // new: a denial may come from a cache
			resp, err := get1(l.client, s.url, at)
			if err != nil || resp.Header.Get("X-RateLimit-Limit") == "" {
				return false
			}
		}
	}
	return true
}

// stop ends the load, and then asks for every key until it is denied.
func (l *load) stop() {
	close(l.stopped)
	l.wg.Wait()
	l.mu.Lock()
	var rest []target
	for at := range l.keys {
		rest = append(rest, at)
	}
	l.mu.Unlock()
	var next atomic.Int64
	var wg sync.WaitGroup
	for range loadWorkers {
		wg.Go(func() {
			for {
				n := int(next.Add(1)) - 1
				if n >= len(rest) {
					return
				}
				for range 10 * faultLimit {
					if shared, admitted := l.ask(rest[n]); shared && !admitted {
						break
					}
				}
			}
		})
	}
	wg.Wait()
	l.client.CloseIdleConnections()
}

// A verdict is what a load has seen.
type verdict struct {
	requests, admitted, denied, unavailable int
	degraded                                int // of the requests
	slowest, p99                            time.Duration
	closed, shared, total                   int // most admitted for one key: FailClosed; FailLocal, by Redis; and with the instances
}

// judge asserts what must hold whatever happened.
func (l *load) judge(t *testing.T, losses int) verdict {
	t.Helper()
	slices.Sort(l.times)
	v := verdict{
		requests: len(l.times), admitted: l.status[200], denied: l.status[429], unavailable: l.status[503],
		slowest: l.times[len(l.times)-1], p99: l.times[len(l.times)*99/100],
	}
	assert.Empty(t, l.failures[:min(5, len(l.failures))], "%d requests with an answer that must not be", len(l.failures))
	// Room for two cores that run Redis, three instances and this load.
	const slack = 900 * time.Millisecond
	assert.Less(t, v.slowest, faultTimeout+slack, "the slowest request")
	assert.Less(t, v.p99, faultTimeout+slack/3, "of a hundred the slowest")
	most := faultLimit * (1 + losses)
	for at, k := range l.keys {
		v.degraded += k.degraded
		assert.LessOrEqual(t, k.shared, most, "%v: admitted by Redis", at)
		total := k.shared
		for _, n := range k.local {
			assert.LessOrEqual(t, n, faultLimit, "%v: admitted by one instance alone", at)
			total += n
		}
		assert.GreaterOrEqual(t, k.shared+k.degraded, faultLimit, "%v: denied although not used up", at)
		if at.policy == ratelimit.FailClosed {
			v.closed = max(v.closed, k.shared)
		} else {
			v.shared, v.total = max(v.shared, k.shared), max(v.total, total)
		}
	}
	return v
}

// A faultProxy stands between the instances and Redis and is the network's
// faults.
type faultProxy struct {
	net.Listener
	target string
	delay  atomic.Int64 // of each answer, ns
	lose   atomic.Bool  // answers are lost with their connection
	hang   atomic.Bool  // nothing gets through
	refuse atomic.Bool  // connections are closed at once

	mu    sync.Mutex
	conns map[net.Conn]bool
}

func startFaultProxy(t *testing.T, target string) *faultProxy {
	t.Helper()
	p := &faultProxy{target: target, conns: map[net.Conn]bool{}}
	p.Listener = acceptEach(t, p.serve, p.cut)
	return p
}

// cut closes every connection.
func (p *faultProxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

func (p *faultProxy) hold(c net.Conn) (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[c] = true
	return func() {
		_ = c.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, c)
	}
}

func (p *faultProxy) serve(client net.Conn) {
	defer p.hold(client)()
	if p.refuse.Load() {
		return
	}
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer p.hold(server)()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		defer server.Close()
		p.copy(server, client, func() bool { return true })
	})
	defer client.Close()
	p.copy(client, server, func() bool {
		time.Sleep(time.Duration(p.delay.Load()))
		return !p.lose.Load()
	})
}

func (p *faultProxy) copy(to, from net.Conn, pass func() bool) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		for p.hang.Load() {
			time.Sleep(time.Millisecond)
		}
		if !pass() {
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// A sentinelPair is a master and a replica under the watch of a sentinel.
type sentinelPair struct{ master, replica, sentinel *redisServer }

func startSentinel(t *testing.T) *sentinelPair {
	t.Helper()
	p := &sentinelPair{master: startRedis(t, "--repl-diskless-sync-delay", "0"), replica: startRedis(t, "--repl-diskless-sync-delay", "0")}
	host, port, _ := net.SplitHostPort(p.master.addr)
	admin(t, p.replica, "replicaof", host, port)
	sentinelPort := freePort(t)
	file := t.TempDir() + "/sentinel.conf"
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "port %s\nbind 127.0.0.1\nsentinel monitor m %s %s 1\n"+
		"sentinel down-after-milliseconds m 500\nsentinel failover-timeout m 2000\n", sentinelPort, host, port), 0o600))
	p.sentinel = &redisServer{t: t, addr: "127.0.0.1:" + sentinelPort, args: []string{redisBinary(t), file, "--sentinel"}}
	p.sentinel.start()
	t.Cleanup(p.sentinel.kill)
	return p
}

func (p *sentinelPair) topology() topology { return topology{"sentinel", []string{p.sentinel.addr}} }

// ready waits until the sentinel knows a replica that could take over.
func (p *sentinelPair) ready(t *testing.T) {
	t.Helper()
	info(t, p.replica, "role:slave", "master_link_status:up")
	c := redis.NewSentinelClient(&redis.Options{Addr: p.sentinel.addr})
	defer c.Close()
	_, port, _ := net.SplitHostPort(p.replica.addr)
	require.Eventually(t, func() bool {
		replicas := c.Replicas(context.Background(), "m").Val()
		return len(replicas) == 1 && replicas[0]["port"] == port && replicas[0]["flags"] == "slave" && replicas[0]["master-link-status"] == "ok"
	}, 40*time.Second, 50*time.Millisecond)
}

// demote makes the old master the replica of the new one, as the sentinel does
// too, later.
func (p *sentinelPair) demote(t *testing.T) {
	t.Helper()
	p.master, p.replica = p.replica, p.master
	host, port, _ := net.SplitHostPort(p.master.addr)
	admin(t, p.replica, "replicaof", host, port)
	info(t, p.replica, "role:slave", "master_link_status:up")
}

// info waits until a node says of its replication what it should.
func info(t *testing.T, s *redisServer, wants ...string) {
	t.Helper()
	c := s.client()
	require.Eventually(t, func() bool {
		text := c.Info(context.Background(), "replication").Val()
		return !slices.ContainsFunc(wants, func(want string) bool { return !strings.Contains(text, want) })
	}, 30*time.Second, 20*time.Millisecond, "%s: %v", s.addr, wants)
}
