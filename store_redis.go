package ratelimit

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// One script for each algorithm. Each call of a store is one run of one.
var (
	//go:embed lua/fixed_window.lua
	fixedWindowLua string
	//go:embed lua/sliding_window_log.lua
	slidingWindowLogLua string
	//go:embed lua/sliding_window_counter.lua
	slidingWindowCounterLua string
	//go:embed lua/token_bucket.lua
	tokenBucketLua string

	scripts = [algorithmCount]script{
		FixedWindow:          newScript(fixedWindowLua),
		SlidingWindowLog:     newScript(slidingWindowLogLua),
		SlidingWindowCounter: newScript(slidingWindowCounterLua),
		TokenBucket:          newScript(tokenBucketLua),
	}
)

// A script is sent by its hash, and as its source to a server that does not
// know it.
type script struct{ hash, source string }

func newScript(source string) script { return script{redis.NewScript(source).Hash(), source} }

// A RedisClient is any client of go-redis v9: a [redis.Client], also of
// Sentinel, a [redis.ClusterClient], a [redis.Ring], a [redis.AutoPipeliner].
type RedisClient interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// A RedisStore is a [Store] in Redis or Valkey, for as many instances of an
// application as share it.
//
// Each decision is one run of a Lua script, one round trip, on the clock of the
// server. A command is sent at most once: go-redis does not retry it, whatever
// its options say, because a lost answer does not mean that the request was not
// counted.
//
// FixedWindow keeps whole milliseconds of the server's clock (a window of 1 ms
// lasts 2), the other algorithms microseconds. SlidingWindowCounter takes a
// coarser unit where limit times period is beyond 2^53 microseconds.
type RedisStore struct {
	Claims
	client RedisClient
	prefix string
	clock  func() time.Time // nil: the real one
	denied *denyCache       // nil: none

	// bounded is whether the client itself ends a call at the deadline of its
	// context. Where it does not, the store stops waiting for it.
	bounded bool
	advice  string // on the client's settings, for the log
	advised atomic.Bool
	faults  []error
}

// A RedisOption is a setting of [NewRedisStore].
type RedisOption interface{ applyRedis(*RedisStore) }

type redisOption func(*RedisStore)

func (o redisOption) applyRedis(s *RedisStore) { o(s) }

// WithPrefix sets what the names of all keys in Redis begin with: letters,
// digits, ".", "_", "-", "/" and ":", at most 64. Applications that share a
// Redis need prefixes of their own. The default is "ratelimit".
func WithPrefix(prefix string) RedisOption {
	return redisOption(func(s *RedisStore) {
		switch {
		case prefix == "" || len(prefix) > 64:
			s.fault("WithPrefix: the prefix %q has %d characters; use 1 to 64 (default %q)", prefix, len(prefix), defaultPrefix)
		case strings.Trim(prefix, nameLetters+":") != "":
			s.fault(`WithPrefix: the prefix %q may only have letters, digits, ".", "_", "-", "/" and ":" (braces would decide which node of a cluster holds every key)`, prefix)
		}
		s.prefix = prefix
	})
}

const defaultPrefix = "ratelimit"

// WithDenyCache bounds how many keys the store remembers in this process as
// denied, so that a client that hammers costs Redis next to nothing. A key is
// denied from memory until the time that Redis said, but Redis is asked again
// once a second, so that a [Limiter.Reset] or [Limiter.Refund] on another
// instance takes effect. The default is 100,000 keys of about 300 bytes; 0
// switches it off.
func WithDenyCache(maxKeys int) RedisOption {
	return redisOption(func(s *RedisStore) {
		if maxKeys < 0 {
			s.fault("WithDenyCache: %d keys; use at least 1, or 0 for no cache (default %d)", maxKeys, defaultDenyCache)
		}
		s.denied = newDenyCache(max(0, maxKeys))
	})
}

const defaultDenyCache = 100_000

// NewRedisStore returns a store that counts in Redis. It does no I/O; a client
// that is nil or an option that cannot be used is an error of [NewLimiter].
//
// Limiters of the same name count together wherever they use the same Redis and
// prefix, which is how many instances share a budget. Within one process, give
// all limiters one store: it refuses two that would share a budget by accident,
// as several without a name would. Two stores do not know of one another.
func NewRedisStore(client RedisClient, opts ...RedisOption) *RedisStore {
	s := &RedisStore{client: client, prefix: defaultPrefix, denied: newDenyCache(defaultDenyCache)}
	for _, o := range opts {
		if o != nil {
			o.applyRedis(s)
		}
	}
	if isNil(client) {
		s.fault("NewRedisStore: the client is nil; use redis.NewClient(&redis.Options{Addr: \"localhost:6379\"}) or the like")
		return s
	}
	s.bounded, s.advice = inspectClient(client)
	return s
}

func (s *RedisStore) fault(format string, args ...any) {
	s.faults = append(s.faults, fmt.Errorf("ratelimit: "+format, args...))
}

func (s *RedisStore) validate() error { return errors.Join(s.faults...) }

// advise returns what is to be said about the client, the first time.
func (s *RedisStore) advise() string {
	if s.advice == "" || s.advised.Load() || s.advised.Swap(true) {
		return ""
	}
	return s.advice
}

// inspectClient reads the settings of a client, as far as it shows them.
func inspectClient(client RedisClient) (bounded bool, advice string) {
	switch c := client.(type) {
	case interface{ Options() *redis.Options }:
		bounded = c.Options().ContextTimeoutEnabled
	case interface{ Options() *redis.ClusterOptions }:
		bounded = c.Options().ContextTimeoutEnabled
	case interface{ Options() *redis.RingOptions }:
		bounded = c.Options().ContextTimeoutEnabled
	default: // an AutoPipeliner, or a wrapper of the user's
		return false, ""
	}
	if !bounded {
		advice = "the Redis client does not end a call at its deadline, so that one that hangs keeps a connection and a goroutine until ReadTimeout; set ContextTimeoutEnabled in its options"
	}
	return bounded, advice
}

// Take implements [Store].
func (s *RedisStore) Take(ctx context.Context, p *Policy, key string, cost int, results []Result) error {
	// The probe asks whether Redis is there, which the cache cannot know.
	if key != probeKey && s.knownDenied(p, key, cost, results) {
		answeredFromMemory(ctx)
		return nil
	}
	return s.take(ctx, p, key, cost, results)
}

// knownDenied sets results and reports true if Redis need not be asked.
func (s *RedisStore) knownDenied(p *Policy, key string, cost int, results []Result) bool {
	return s.denied != nil && s.denied.answer(s.now(), p, key, cost, results)
}

// take asks Redis.
func (s *RedisStore) take(ctx context.Context, p *Policy, key string, cost int, results []Result) error {
	asked := s.now()
	err := s.run(ctx, p, "take", key, cost, nil, results)
	if err == nil && s.denied != nil {
		s.denied.note(asked, s.now(), p, key, cost, results)
	}
	return err
}

// Peek implements [Store].
func (s *RedisStore) Peek(ctx context.Context, p *Policy, key string, results []Result) error {
	return s.run(ctx, p, "peek", key, 1, nil, results)
}

// Refund implements [Store].
func (s *RedisStore) Refund(ctx context.Context, p *Policy, key string, cost int, left []time.Duration) error {
	defer s.forget(p, key)
	return s.run(ctx, p, "refund", key, cost, left, nil)
}

// Reset implements [Store].
func (s *RedisStore) Reset(ctx context.Context, p *Policy, key string) error {
	defer s.forget(p, key)
	args := append(make([]any, 0, 1+len(p.redis)), "del")
	for _, name := range s.keys(p, key) {
		args = append(args, name)
	}
	_, err := s.send(ctx, args)
	return err
}

func (s *RedisStore) forget(p *Policy, key string) {
	if s.denied != nil {
		s.denied.forget(p, key)
	}
}

func (s *RedisStore) now() time.Time {
	if s.clock != nil {
		return s.clock()
	}
	return time.Now()
}

// keys returns the names of key's counts, one for each limit. Braces, which in
// a cluster decide the node, are around the policy's name and the hash of the
// key: all limits of one key are together, and no text of a client's is there.
func (s *RedisStore) keys(p *Policy, key string) []string {
	hash := keyHash(key)
	names := make([]string, len(p.redis))
	for i, tail := range p.redisTails {
		names[i] = s.prefix + ":{" + p.redisName + ":" + hash + "}:" + tail
	}
	return names
}

// redisNames returns the parts of keys that depend on the policy alone.
func redisNames(p *Policy) (name string, tails []string) {
	var b strings.Builder
	for i := range len(p.name) {
		if ch := p.name[i]; ch <= ' ' || ch > '~' || strings.IndexByte("{}%:", ch) >= 0 {
			fmt.Fprintf(&b, "%%%02X", ch)
		} else {
			b.WriteByte(ch)
		}
	}
	short := [algorithmCount]string{FixedWindow: "fw", SlidingWindowLog: "swl", SlidingWindowCounter: "swc", TokenBucket: "tb"}
	for _, of := range p.redis {
		tail := short[p.algorithm] + ":" + strconv.FormatInt(wholeMilliseconds(of.limit.Period).Milliseconds(), 10)
		if of.span > of.period {
			tail += ":" + strconv.FormatInt(of.span, 10)
		}
		tails = append(tails, tail)
	}
	return b.String(), tails
}

// run runs the script of p and reads what it returns into results, if any.
func (s *RedisStore) run(ctx context.Context, p *Policy, op, key string, cost int, left []time.Duration, results []Result) error {
	script := &scripts[p.algorithm]
	names := s.keys(p, key)
	args := make([]any, 0, 5+len(names)*8)
	args = append(args, "evalsha", script.hash, len(names))
	for _, name := range names {
		args = append(args, name)
	}
	args = append(args, op, cost)
	for i := range p.redis {
		args = p.redis[i].appendArgs(args, int64(cost), left, i)
	}
	reply, err := s.send(ctx, args)
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		// Normal after a restart, a failover, SCRIPT FLUSH: nothing has run.
		args[0], args[1] = "eval", script.source
		reply, err = s.send(ctx, args)
	}
	if err != nil {
		s.reloadCluster(ctx, err)
		return err
	}
	return p.readReply(reply, int64(cost), results)
}

// reloadCluster makes a ClusterClient look for the new master of a slot whose
// old one does not answer. go-redis does so when it retries a command, which
// this store's are not; else only once in ClusterStateReloadInterval, 60 s by
// default.
func (s *RedisStore) reloadCluster(ctx context.Context, err error) {
	var reply redis.Error
	if c, ok := s.client.(interface{ ReloadState(context.Context) }); ok && !errors.As(err, &reply) {
		c.ReloadState(ctx)
	}
}

// appendArgs appends what the script of b's algorithm wants to know of a limit.
func (b *budget) appendArgs(args []any, cost int64, left []time.Duration, i int) []any {
	// The server and this process round a decision's age differently.
	const tolerance = time.Millisecond
	remains := int64(anyDecision)
	if left != nil {
		if remains = 0; left[i] > 0 {
			remains = int64((left[i] + tolerance) / b.tick)
		}
	}
	switch b.algorithm {
	case FixedWindow:
		if remains > 0 {
			remains = (left[i] + tolerance).Milliseconds() + 1
		}
		// A key is still alive at its last millisecond.
		return append(args, b.quota, max(1, b.period/int64(time.Millisecond/b.tick)-1), remains)
	case SlidingWindowLog:
		return append(args, b.quota, b.period, remains)
	case SlidingWindowCounter:
		return append(args, b.quota, b.period, int64(b.tick/time.Microsecond), remains)
	default: // TokenBucket
		c := b.interval(cost)
		return append(args, b.requests, c.whole, c.fraction, b.capacity.whole, b.capacity.fraction, b.span, remains)
	}
}

// readReply makes results of what a script returned: the time, and for each
// limit whether the cost fits and three numbers of its state.
func (p *Policy) readReply(reply any, cost int64, results []Result) error {
	values, ok := reply.([]any)
	if !ok || len(values) != 1+4*len(p.redis) {
		return fmt.Errorf("ratelimit: redis: unexpected reply %v", reply)
	}
	var n [1 + 4*maxLimits]int64
	for i, v := range values {
		if n[i], ok = v.(int64); !ok {
			return fmt.Errorf("ratelimit: redis: unexpected reply %v", reply)
		}
	}
	for i := range results {
		b := &p.redis[i]
		now := n[0] / int64(b.tick/time.Microsecond)
		fits, x, y, z := n[1+4*i] == 1, n[2+4*i], n[3+4*i], n[4+4*i]
		var st state
		switch b.algorithm {
		case FixedWindow: // count and PTTL; the last millisecond counts
			st = state{n: x, at: (y + 1) * int64(time.Millisecond/b.tick)}
		case SlidingWindowLog:
			st = state{n: x, at: y, prev: z}
		case SlidingWindowCounter:
			st = state{at: x, n: y, prev: min(z, maxRequests)}
		case TokenBucket:
			st = state{at: x, n: y}
		}
		st.n = min(st.n, maxRequests) // somebody else may have written the key
		if !b.possible(st, now, cost, fits) {
			return fmt.Errorf("ratelimit: redis: unexpected reply %v", reply)
		}
		b.report(&results[i], st, now, cost, fits)
	}
	return nil
}

// possible reports whether a script can have answered with st. What it cannot
// have, like an answer that is no script's, would be divided by here.
func (b *budget) possible(st state, now, cost int64, fits bool) bool {
	if st.n < 0 || st.prev < 0 {
		return false
	}
	switch elapsed := now - st.at; b.algorithm {
	case SlidingWindowCounter:
		if elapsed < 0 || elapsed >= b.period {
			return false
		}
	case TokenBucket:
		if elapsed > 0 || st.n >= b.requests {
			return false
		}
	}
	_, fit := b.spend(st, now, cost)
	return fits || !fit
}

// A sendOnce is a command that go-redis does not retry.
type sendOnce struct{ *redis.Cmd }

func (sendOnce) NoRetry() bool { return true }

// send sends one command and returns its reply. It returns at the deadline of
// ctx, whatever the client does.
func (s *RedisStore) send(ctx context.Context, args []any) (any, error) {
	cmd := sendOnce{redis.NewCmd(ctx, args...)}
	if s.bounded {
		return await(ctx, s.client, cmd)
	}
	type answer struct {
		reply any
		err   error
	}
	done := make(chan answer, 1)
	go func() {
		reply, err := await(ctx, s.client, cmd)
		done <- answer{reply, err}
	}()
	select {
	case a := <-done:
		return a.reply, a.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func await(ctx context.Context, client RedisClient, cmd sendOnce) (any, error) {
	if err := client.Process(ctx, cmd); err != nil {
		return nil, err
	}
	return cmd.Result() // which an asynchronous AutoPipeliner fills in later
}

// aboutOneKey reports whether an error of this store is about the key that was
// asked for, and tells nothing of the server: something else than a count has
// been stored under its name.
func aboutOneKey(err error) bool {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return false
	}
	text := reply.Error()
	return strings.Contains(text, "WRONGTYPE") || strings.Contains(text, "not an integer") || strings.Contains(text, "user_script")
}
