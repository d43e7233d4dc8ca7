//go:build fault

// The fault run: go test -run Fault -tags fault . in about a minute, and with
// RATELIMIT_FAULT_SECONDS=600 again and again for ten, which writes what it
// found to docs/faults.md.
//
// Here time is what is tested: a load goes on while something is broken, and
// after it is mended.

package ratelimit_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A fault is one thing that goes wrong under load.
type fault struct {
	name string

	// losses is how often counts are lost: each lets at most one further limit
	// through.
	losses int

	// unnoticed is whether Redis goes on deciding meanwhile.
	unnoticed bool

	// failover is whether Redis mends itself: recovery then counts from the
	// fault, not from the repair.
	failover bool

	ready func(t *testing.T) // waits until the fault can be made; may be nil
	do    func(t *testing.T)
	mend  func(t *testing.T) // may be nil
}

const (
	holdFault = time.Second // how long a fault lasts

	// How soon Redis must decide everywhere again, with room for a busy machine.
	soon     = 5 * time.Second
	failover = 20 * time.Second
)

// A row of the table of results: what several runs of one fault have shown.
type row struct {
	where, name string
	losses      int
	runs        int
	verdict
	recovery time.Duration
}

// faultSeconds is how long the run shall take; 0 for each fault once.
func faultSeconds(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("RATELIMIT_FAULT_SECONDS")
	if text == "" {
		return 0
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, "RATELIMIT_FAULT_SECONDS is a number of seconds")
	return time.Duration(n) * time.Second
}

func TestFaultsOfRedisUnderLoad(t *testing.T) {
	total := faultSeconds(t)
	var rows []*row
	began := time.Now()
	for _, place := range []struct {
		name  string
		start func(t *testing.T) (topology, []fault)
	}{
		{"one Redis that writes each command to disk", durable},
		{"one Redis without persistence", fleeting},
		{"Sentinel, one replica", sentinelAsked},
		{"Sentinel, one replica", sentinelAlone},
		{"Cluster, three masters with a replica each", cluster},
	} {
		t.Run(place.name, func(t *testing.T) {
			redisAt, faults := place.start(t)
			var servers []*faultServer
			for range faultServers {
				servers = append(servers, startFaultServer(t, redisAt))
			}
			first := len(rows)
			for _, f := range faults {
				rows = append(rows, &row{where: place.name, name: f.name, losses: f.losses})
			}
			for start := time.Now(); ; {
				for i, f := range faults {
					t.Run(f.name, func(t *testing.T) { rows[first+i].add(run(t, servers, f)) })
				}
				if t.Failed() || time.Since(start) > total/5 {
					return
				}
			}
		})
	}
	version, err := exec.Command(redisBinary(t), "--version").Output()
	require.NoError(t, err)
	text := table(rows, time.Since(began), strings.Fields(string(version))[2])
	fmt.Print(text)
	if total > 0 && !t.Failed() {
		require.NoError(t, os.MkdirAll("docs", 0o755))
		require.NoError(t, os.WriteFile("docs/faults.md", []byte(text), 0o644))
	}
}

// run lets one fault happen under load, and judges.
func run(t *testing.T, servers []*faultServer, f fault) (verdict, time.Duration) {
	t.Helper()
	if f.ready != nil {
		f.ready(t)
	}
	l := startLoad(servers, fmt.Sprintf("%s-%d", strings.ReplaceAll(f.name, " ", "-"), time.Now().UnixNano()))
	require.Eventually(t, l.healthy, failover, 10*time.Millisecond, "healthy before")
	time.Sleep(700 * time.Millisecond)
	since, most := time.Now(), failover
	f.do(t)
	if !f.failover {
		if f.mend != nil {
			f.mend(t)
		}
		since, most = time.Now(), soon
	}
	require.Eventually(t, l.healthy, most, 10*time.Millisecond, "until Redis decides everywhere again")
	recovery := time.Since(since)
	if f.failover && f.mend != nil {
		f.mend(t) // what failed comes back, and must not disturb
		require.Eventually(t, l.healthy, soon, 10*time.Millisecond, "healthy after the old master came back")
	}
	time.Sleep(500 * time.Millisecond)
	l.stop()
	v := l.judge(t, f.losses)
	if f.unnoticed {
		// But for what a busy machine delays beyond the deadline.
		assert.Less(t, v.degraded, v.requests/100+1, "requests decided without Redis")
	}
	return v, recovery
}

// durable is a Redis whose counts survive a crash, behind a proxy.
func durable(t *testing.T) (topology, []fault) {
	t.Helper()
	s := startRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	p := startFaultProxy(t, s.addr)
	hold := func(*testing.T) { time.Sleep(holdFault) }
	during := func(step func(t *testing.T), every time.Duration) func(*testing.T) {
		return func(t *testing.T) {
			t.Helper()
			for end := time.Now().Add(holdFault); time.Now().Before(end); time.Sleep(every) {
				step(t)
			}
		}
	}
	return topology{"single", []string{p.Addr().String()}}, []fault{
		{
			name: "SIGKILL, restart after 1 s",
			do:   func(t *testing.T) { s.kill(); hold(t) },
			mend: func(*testing.T) { s.start() },
		},
		{
			name: "SIGSTOP for 1 s",
			do:   func(t *testing.T) { s.signal(syscall.SIGSTOP); hold(t) },
			mend: func(*testing.T) { s.signal(syscall.SIGCONT) },
		},
		{
			name: "SCRIPT FLUSH every 5 ms", unnoticed: true,
			do: during(func(t *testing.T) { admin(t, s, "script", "flush") }, 5*time.Millisecond),
		},
		{
			name: "memory full for 1 s",
			do:   func(t *testing.T) { admin(t, s, "config", "set", "maxmemory", "1"); hold(t) },
			mend: func(t *testing.T) { admin(t, s, "config", "set", "maxmemory", "0") },
		},
		{
			name: "connections cut every 20 ms",
			do:   during(func(*testing.T) { p.cut() }, 20*time.Millisecond),
		},
		{
			name: "answers lost for 1 s",
			do:   func(t *testing.T) { p.lose.Store(true); hold(t) },
			mend: func(*testing.T) { p.lose.Store(false) },
		},
		{
			name: "network silent for 1 s",
			do:   func(t *testing.T) { p.hang.Store(true); hold(t) },
			mend: func(*testing.T) { p.hang.Store(false) },
		},
		{
			name: "connections refused for 1 s",
			do:   func(t *testing.T) { p.refuse.Store(true); p.cut(); hold(t) },
			mend: func(*testing.T) { p.refuse.Store(false) },
		},
		{
			name: "answers delayed by 10 ms, within the deadline",
			do:   func(t *testing.T) { p.delay.Store(int64(10 * time.Millisecond)); hold(t) },
			mend: func(*testing.T) { p.delay.Store(0) },
		},
		{
			name: "answers delayed by 250 ms, beyond the deadline",
			do:   func(t *testing.T) { p.delay.Store(int64(250 * time.Millisecond)); hold(t) },
			mend: func(*testing.T) { p.delay.Store(0) },
		},
	}
}

// fleeting is a Redis that loses its counts when it stops.
func fleeting(t *testing.T) (topology, []fault) {
	t.Helper()
	s := startRedis(t)
	return topology{"single", []string{s.addr}}, []fault{
		{
			name: "SIGKILL, restart after 1 s", losses: 1,
			do:   func(*testing.T) { s.kill(); time.Sleep(holdFault) },
			mend: func(*testing.T) { s.start() },
		},
		{
			name: "FLUSHALL", losses: 1, unnoticed: true,
			do: func(t *testing.T) { admin(t, s, "flushall") },
		},
	}
}

// sentinelAsked is a master and a replica, which change places on request.
func sentinelAsked(t *testing.T) (topology, []fault) {
	t.Helper()
	pair := startSentinel(t)
	return pair.topology(), []fault{{
		name: "SENTINEL FAILOVER", losses: 1, failover: true, ready: pair.ready,
		do: func(t *testing.T) {
			admin(t, pair.sentinel, "sentinel", "failover", "m")
			info(t, pair.replica, "role:master")
		},
		mend: pair.demote,
	}}
}

// sentinelAlone is a master and a replica that takes over when it has died.
func sentinelAlone(t *testing.T) (topology, []fault) {
	t.Helper()
	pair := startSentinel(t)
	return pair.topology(), []fault{{
		name: "master SIGKILLed, replica promoted", losses: 1, failover: true, ready: pair.ready,
		do: func(t *testing.T) {
			pair.master.kill()
			info(t, pair.replica, "role:master")
		},
		mend: func(t *testing.T) {
			pair.master.start()
			pair.demote(t)
		},
	}}
}

// cluster is three masters, each with a replica.
func cluster(t *testing.T) (topology, []fault) {
	t.Helper()
	nodes, client := startCluster(t, true)
	addrs := make([]string, len(nodes))
	for i, n := range nodes {
		addrs[i] = n.addr
	}
	// The first master and its replica change places, the others stay.
	swap := func() { nodes[0], nodes[3] = nodes[3], nodes[0] }
	follows := func(t *testing.T) {
		t.Helper()
		info(t, nodes[0], "role:slave", "master_link_status:up")
		require.Eventually(t, func() bool {
			return strings.Contains(client.ClusterInfo(context.Background()).Val(), "cluster_state:ok")
		}, failover, 20*time.Millisecond)
		swap()
	}
	return topology{"cluster", addrs}, []fault{
		{
			name: "SCRIPT FLUSH on every node", unnoticed: true,
			do: func(t *testing.T) {
				for _, n := range nodes[:3] {
					admin(t, n, "script", "flush")
				}
			},
		},
		{
			name: "master SIGKILLed, replica promoted", losses: 1, failover: true,
			do:   func(t *testing.T) { nodes[0].kill(); info(t, nodes[3], "role:master") },
			mend: func(t *testing.T) { nodes[0].start(); follows(t) },
		},
		{
			name: "CLUSTER FAILOVER, which loses nothing", failover: true,
			do:   func(t *testing.T) { admin(t, nodes[3], "cluster", "failover"); info(t, nodes[3], "role:master") },
			mend: follows,
		},
		{
			name: "master SIGSTOPped until it was replaced", losses: 1, failover: true,
			do: func(t *testing.T) { nodes[0].signal(syscall.SIGSTOP); info(t, nodes[3], "role:master") },
			mend: func(t *testing.T) {
				nodes[0].signal(syscall.SIGCONT)
				follows(t)
			},
		},
	}
}

func (r *row) add(v verdict, recovery time.Duration) {
	r.runs++
	r.requests += v.requests
	r.admitted += v.admitted
	r.denied += v.denied
	r.unavailable += v.unavailable
	r.slowest = max(r.slowest, v.slowest)
	r.p99 = max(r.p99, v.p99)
	r.closed, r.shared, r.total = max(r.closed, v.closed), max(r.shared, v.shared), max(r.total, v.total)
	r.recovery = max(r.recovery, recovery)
}

// table is what a person reads.
func table(rows []*row, took time.Duration, redisVersion string) string {
	var b strings.Builder
	requests := 0
	for _, r := range rows {
		requests += r.requests
	}
	fmt.Fprintf(&b, `# Last fault run

Written by %[5]sRATELIMIT_FAULT_SECONDS=%[9]s go test -run Fault -tags fault -timeout 60m .%[5]s (%[6]s, Redis %[7]s, %[8]s).

%[2]d requests in %.0[1]f s, to %[3]d processes of a Gin application on one Redis (or Sentinel, or Cluster), each with
limiters of all four algorithms: %[4]d requests a day for each key, a deadline of 100 ms. In no run was there a panic,
an answer other than 200, 429 and (FailClosed alone) 503, or a key that was denied before it was used up.

- *most* is how much was admitted for the luckiest of all keys, and what may be at most: the limit, and once more
  where counts were lost. Under FailLocal "+" is what the instances admitted on their own, at most the limit each.
- *recovery* is the time until Redis decided on every limiter of every instance again: from the repair, or where a
  replica took over from the fault.

`, took.Seconds(), requests, faultServers, faultLimit, "`",
		time.Now().Format(time.DateOnly), strings.TrimPrefix(redisVersion, "v="), runtime.Version(), os.Getenv("RATELIMIT_FAULT_SECONDS"))
	where := ""
	for _, r := range rows {
		if r.where != where {
			where = r.where
			fmt.Fprintf(&b, "## %s\n\n| fault | runs | requests | 200 | 429 | 503 | p99 | slowest | most, FailClosed | most, FailLocal | recovery |\n|---|---|---|---|---|---|---|---|---|---|---|\n", strings.ToUpper(where[:1])+where[1:])
		}
		most := faultLimit * (1 + r.losses)
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d | %d | %d ms | %d ms | %d of %d | %d of %d + %d of %d | %.1f s |\n",
			r.name, r.runs, r.requests, r.admitted, r.denied, r.unavailable, r.p99.Milliseconds(), r.slowest.Milliseconds(),
			r.closed, most, r.shared, most, r.total-r.shared, faultServers*faultLimit, r.recovery.Seconds())
		if next := nextOf(rows, r); next == nil || next.where != where {
			b.WriteString("\n")
		}
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}

func nextOf(rows []*row, r *row) *row {
	for i := range rows[:len(rows)-1] {
		if rows[i] == r {
			return rows[i+1]
		}
	}
	return nil
}
