package main

// The tests that know the most, by what they are about.
const (
	inMemory = "MemoryStoreAgrees"
	inRedis  = "RedisStoreAgrees|ARealRedisAgrees"
	contract = "RedisStoreKeepsTheContract"
	byIP     = "OneClientHasOneKey|IPv6Prefix|WhileGinTrusts|OnceProxies"
	byKey    = "KeysNameTheirKind|JoinedKeys"
	headers  = "HeaderStyles|RetryAfterIsInWhole|ADenialIs|ADenialAborts"
	outage   = "EachFailurePolicy|TheBreaker|FailuresWithSuccesses|HangsUp"
	denials  = "TheDenyCache"
	promises = "Promise"
)

// Two faults are not here, because no test notices them. Keys that a sweep
// removed being taken off the count after their shard is unlocked: for some
// nanoseconds a store that has room then looks full. And a refund of a token
// bucket leaving the TAT in the past: the next decision takes it as now anyway.
var faults = []fault{
	// The arithmetic of the algorithms.
	{"fixed window: one request fewer fits", "budget.go", "return st, st.n <= b.quota", "return st, st.n < b.quota", inMemory},
	{"fixed window: lasts a tick too long", "budget.go", "st.n == 0 || now >= st.at", "st.n == 0 || now > st.at", inMemory},
	{"fixed window: a clock set back locks out", "budget.go", "st.at = min(st.at, now+b.period)", "st.at = max(st.at, now)", inMemory},
	{"sliding log: the cost is not looked at", "budget.go", "return st, st.n+cost <= b.quota", "return st, st.n < b.quota", inMemory},
	{"sliding log: the wait is for the wrong entry", "budget.go", "st.log.at(st.n+cost-b.quota-1)", "st.log.at(st.n+cost-b.quota)", inMemory + "|BoundsOfALimit"},
	{"sliding log: an entry stays a tick too long", "budget.go", "*r.slot(0) <= now-period", "*r.slot(0) < now-period", inMemory + "|AClientThatWaitsRetryAfter"},
	{"sliding counter: the last place is not given", "budget.go", "return st, free >= 0 && !less(", "return st, free > 0 && !less(", inMemory},
	{"sliding counter: forgets the window before", "budget.go", "prev: st.n}", "prev: 0}", inMemory},
	{"sliding counter: a window counts for too long", "budget.go", "elapsed >= 2*b.period", "elapsed >= 3*b.period", inMemory},
	{"sliding counter: remaining is rounded up", "budget.go", "b.quota - st.n - mulDivUp(", "b.quota - st.n - mulDiv(", inMemory},
	{"token bucket: the fraction is ignored", "budget.go", "return st, !st.after(b.emptyAt(now))", "return st, st.at <= b.emptyAt(now).whole", inMemory + "|AClientThatWaitsRetryAfter"},
	{"token bucket: a fraction is lost", "budget.go", "st.n -= b.requests\n\t\tst.at++", "st.n -= b.requests", inMemory + "|NoFraction"},
	{"token bucket: the wait is rounded down", "budget.go", "+ roundUp(st.n-empty.fraction)", "+ 0*roundUp(st.n-empty.fraction)", inMemory},
	{"a refund goes below zero", "budget.go", "st.n = max(0, st.n-cost)", "st.n -= cost", inMemory},
	{"a refund reaches another window", "budget.go", "left == anyDecision || b.resetAfter(st, now) <= left", "left == anyDecision || left > 0", inMemory},
	{"a refund of what came back by itself", "budget.go", "if left == 0 {\n\t\treturn st\n\t}", "", inMemory + "|ALateRefund"},
	{"a period is rounded down", "budget.go", "(period + time.Millisecond - 1) / time.Millisecond * time.Millisecond", "period / time.Millisecond * time.Millisecond", inMemory},
	{"budgets of different periods are one", "budget.go", "b.period == o.period && b.span == o.span && b.algorithm", "b.algorithm", "Neighbours|SeveralLimits"},
	{"remaining below zero", "budget.go", "int(max(0, b.remaining(st, now)))", "int(b.remaining(st, now))", "NumberOfRequestsMayChange"},
	{"the promise of the sliding log", "budget.go", "return st, st.n+cost <= b.quota", "return st, st.n+cost <= b.quota+1", promises},

	// The memory store.
	{"memory: what one limit denies, the others count", "store_memory.go", "\t\tif allowed {", "\t\tif results[i].Allowed {", inMemory + "|SeveralLimits"},
	{"memory: two look before either counts", "store_memory.go", "\t\tallowed = allowed && fits\n\t}\n", "\t\tallowed = allowed && fits\n\t}\n\tsh.mu.Unlock()\n\tsh.mu.Lock()\n", "ExactlyTheLimitIsAdmittedUnder|ConcurrentCallsForOneKey"},
	{"memory: one key more than the bound", "store_memory.go", "held >= s.maxKeys", "held > s.maxKeys", "NeverHoldsMore"},
	{"memory: a reset key is still counted", "store_memory.go", "\t\t\tsh.remove(at)\n\t\t\ts.held.Add(-1)", "\t\t\tsh.remove(at)", "ResetMakesRoom"},
	{"memory: nothing is swept", "store_memory.go", "sh.calls&s.sweepEvery.Load() == 0", "false", "MemoryComesBack"},
	{"memory: who is denied makes room", "table.go", "if needs := e.needs(); remaining < needs {", "if needs := e.needs(); remaining < needs-1 {", "ADeniedClientStaysDenied|ANewKeyIsDenied"},
	{"memory: who is near the limit makes room", "table.go", "used := 1 - float64(remaining)/float64(e.budget.quota)", "used := float64(remaining) / float64(e.budget.quota)", "FurthestFromTheirLimit"},
	{"memory: a key takes its own place", "table.go", "if e.tag == tagOf(hash) && e.is(key) {", "if false {", "TakesNoPlaceOfItsOwn"},
	{"memory: a shard that spared a key its own is full for all others", "table.go", "\t\t\town = true\n", "", "AShardThatSpared"},
	{"memory: two keys of one hash are one", "table.go", "if e.is(key) && e.budget.same(b) {", "if e.budget.same(b) {", "AShardFinds"},
	{"memory: a removed key breaks the search for others", "table.go", "if (j-home)&mask >= (j-i)&mask {", "if (j-home)&mask > (j-i)&mask {", "AShardFinds"},
	{"two limiters share a budget by accident", "store.go", "case taken && other != settings:", "case false:", "NeverShareABudgetByAccident"},

	// The scripts.
	{"lua fixed window: no PEXPIRE", "lua/fixed_window.lua", "      redis.call('PEXPIRE', key, ttl)\n    else", "    else", "EveryKeyHasATTL"},
	{"fixed window in Redis: a TTL of one millisecond more", "store_redis.go", "b.period/int64(time.Millisecond/b.tick)-1", "b.period/int64(time.Millisecond/b.tick)", inRedis},
	{"a garbled reply of Redis is a decision", "store_redis.go", "if n[i], ok = v.(int64); !ok {", "if n[i], _ = v.(int64); false {", "AReplyThatNoScript"},
	{"lua fixed window: a lost TTL is not healed", "lua/fixed_window.lua", "if ttl < 0 or ttl > window then", "if ttl > window then", "EveryKeyHasATTL"},
	{"lua fixed window: denied consumes", "lua/fixed_window.lua", "  undo(#KEYS)\n", "", "ADeniedRequestConsumesNothingInRedis"},
	{"lua fixed window: a refund goes below zero", "lua/fixed_window.lua", "        if count > 0 then\n          redis.call('DECRBY', key, cost)\n        else\n          redis.call('DEL', key)\n        end", "        redis.call('DECRBY', key, cost)", contract},
	{"lua sliding log: an entry stays too long", "lua/sliding_window_log.lua", "if at(key, 0) <= now - period then", "if at(key, 0) < now - period then", inRedis + "|" + contract},
	{"lua sliding log: no PEXPIRE", "lua/sliding_window_log.lua", "    redis.call('PEXPIRE', KEYS[i], string.format('%.0f', math.ceil(arg(i, 2) / 1000)))\n", "", "EveryKeyHasATTL"},
	{"lua sliding log: times lose their last digits", "lua/sliding_window_log.lua", "local value, batch = string.format('%.0f', t), {}", "local value, batch = tostring(t), {}", "ARealRedisAgrees"},
	{"lua sliding log: denied consumes", "lua/sliding_window_log.lua", "if op == 'take' and all then", "if op == 'take' and fits[i] then", contract},
	{"lua sliding counter: a window counts for too long", "lua/sliding_window_counter.lua", "elapsed >= 2 * period", "elapsed >= 3 * period", inRedis},
	{"lua sliding counter: a TTL of one window", "lua/sliding_window_counter.lua", "(start[i] + 2 * arg(i, 2))", "(start[i] + 1 * arg(i, 2))", inRedis},
	{"lua sliding counter: a refund reaches another window", "lua/sliding_window_counter.lua", "(left < 0 or start[i] + 2 * arg(i, 2) - tick(i) <= left)", "left ~= 0", "DoesNotReachAnotherWindow"},
	{"lua token bucket: no TTL", "lua/token_bucket.lua", ", 'PX', math.floor((t - now) / 1000) + 1)", ")", "EveryKeyHasATTL"},
	{"lua token bucket: expires a fraction too early", "lua/token_bucket.lua", "math.floor((t - now) / 1000) + 1", "math.max(1, math.ceil((t - now) / 1000))", "ABucketIsKept"},
	{"lua token bucket: a fraction of another limit", "lua/token_bucket.lua", "tonumber(of) ~= parts", "false", "NumberOfRequestsMayChange"},
	{"lua fixed window: a clock set back makes the window longer", "lua/fixed_window.lua", "if ttl < 0 or ttl > window then", "if ttl < 0 then", "AlsoWhereTheClock"},
	{"lua sliding log: what is in the future stays there", "lua/sliding_window_log.lua", "if newest[i] > now then", "if false then", "AlsoWhereTheClock"},
	{"lua sliding counter: that the clock was set back is not written down", "lua/sliding_window_counter.lua", "s, mend[i] = now, true", "s = now", "AlsoWhereTheClock"},
	{"lua sliding counter: expires a window too early", "lua/sliding_window_counter.lua", "local left = (start[i] + 2 * arg(i, 2))", "local left = (start[i] + arg(i, 2))", inRedis},
	{"lua token bucket: a clock set back locks out", "lua/token_bucket.lua", "elseif t >= empty then", "elseif false then", "AClockThatWasSetBack"},

	// The Redis store.
	{"redis: a command is sent again", "store_redis.go", "func (sendOnce) NoRetry() bool { return true }", "func (sendOnce) NoRetry() bool { return false }", "WhoseAnswerIsLost"},
	{"redis: a lost script cache is an error", "store_redis.go", `redis.HasErrorPrefix(err, "NOSCRIPT")`, `redis.HasErrorPrefix(err, "NO SCRIPT")`, "ALostScriptCache"},
	{"redis: the client's text is in the key", "store_redis.go", `hash := keyHash(key)`, `hash := key`, "KeysInRedisCarry"},
	{"redis: no hash tag", "store_redis.go", `s.prefix + ":{" + p.redisName`, `s.prefix + ":" + p.redisName`, "KeysInRedisCarry"},
	{"redis: a cluster's new master is not looked for", "store_redis.go", "\t\tc.ReloadState(ctx)", "\t\t_ = c", "FailoverUnderLoad"},
	{"redis: waits for a client that knows no deadline", "store_redis.go", "\tif s.bounded {", "\tif true {", "AnOutageOfRedis/hung"},
	{"redis: one broken key is an outage", "store_redis.go", `return strings.Contains(text, "WRONGTYPE") ||`, `return strings.Contains(text, "WRONG TYPE") ||`, "AnythingElseUnder"},
	{"deny cache: any cost is denied", "denycache.go", "if d == nil || d.cost != cost {", "if d == nil {", "IsKeyedByWhatWasAsked|AnotherCost|" + denials},
	{"deny cache: Redis is not asked again", "denycache.go", "now.Sub(d.asked) >= denyRecheck", "now.Sub(d.asked) >= 1000*denyRecheck", denials},
	{"deny cache: denies a moment too long", "denycache.go", "if !now.Before(d.until) {", "if now.After(d.until) {", "FromTheCacheIsAdmittedAfter"},
	{"deny cache: a refund is not noticed", "denycache.go", "\tdelete(sh.keys, denyKey{p, key})\n}", "}", denials},
	{"deny cache: the wait stands still", "denycache.go", "r.RetryAfter = max(1, r.RetryAfter-age)", "r.RetryAfter = max(1, r.RetryAfter)", denials},
	{"deny cache: grows without bound", "denycache.go", "len(sh.keys) >= c.perShard && sh.keys[id] == nil", "false", "NeverHoldsMoreThanItsBound"},
	{"deny cache: a denial that holds makes room, not one that is over", "denycache.go", "seen == 8 || !now.Before(d.until)", "seen == 8 || now.Before(d.until)", "ADenialThatIsOver"},

	// Failures.
	{"the breaker opens a failure late", "failure.go", "g.failures.Add(1) >= breakAfter", "g.failures.Add(1) > breakAfter", outage},
	{"a client that hung up is a failure", "failure.go", "\tcase gone(ctx):\n\t\treturn ctx.Err() // nobody's failure\n", "", outage},
	{"failures with successes between them add up", "failure.go", "if !q.fromMemory && g.failures.Load() != 0 {", "if false {", outage},
	{"denials from memory hide that the store is down", "failure.go", "\t\tq.fromMemory = true\n", "\t\t_ = q\n", "DoNotHide"},
	{"every request probes a broken store", "failure.go", " || !g.probeAt.CompareAndSwap(at, now+pause)", "", outage},
	{"a call has ten times its deadline", "failure.go", "bounded, cancel := context.WithTimeout(ctx, g.timeout)", "bounded, cancel := context.WithTimeout(ctx, 10*g.timeout)", outage},
	{"FailLocal lets everything pass", "failure.go", "_ = l.memory.Take(ctx, p, key, cost, results)", "results[0] = Result{Allowed: true}", outage},
	{"a cost that never fits is asked for", "failure.go", "case cost > p.maxCost:", "case cost > p.maxCost+1:", "CostsThatCanNever|CostOfARequest"},

	// The middleware.
	{"a denial does not abort", "headers.go", "\tc.Abort()\n\tc.Status(status)", "\tc.Status(status)", headers},
	{"a 503 does not abort", "ratelimit.go", "setRetryAfter(refuse(c, http.StatusServiceUnavailable), time.Second)", "c.Status(http.StatusServiceUnavailable)", outage},
	{"a 429 may be cached", "headers.go", `h["Cache-Control"] = noStore`, `_ = noStore`, headers},
	{"Retry-After is rounded down", "headers.go", "int64(d/time.Second) + roundUp(int64(d%time.Second))", "int64(d / time.Second)", headers},
	{"the time of the reset is rounded down", "headers.go", "reset.Unix()+roundUp(int64(reset.Nanosecond()))", "reset.Unix()", headers},
	{"names with a backslash break the header", "headers.go", `case ch == '"' || ch == '\\':`, `case ch == '"':`, "Names|Draft10"},
	{"invented headers while the store is down", "ratelimit.go", "if !out.degraded { // else", "if true { // else", outage},
	{"one limiter decides twice", "visit.go", "case l:\n\t\t\treturn false", "case l:\n\t\t\treturn true", "OneLimiterDecidesOnce"},
	{"the third limiter of a chain decides twice", "visit.go", "\tv.more = append(v.more, l)\n", "", "DecidesOnce"},
	{"preflights are counted", "ratelimit.go", "if isPreflight(c.Request) && !l.hasRuleForOptions(c) || l.skip", "if l.skip", "Preflights"},
	{"a client that hung up is a failure of the server", "ratelimit.go", "case gone(ctx) && out.err != nil:", "case false:", "HungUp|HangsUp"},
	{"one limit of several is enough", "ratelimit.go", "r.Allowed = a.Allowed && b.Allowed", "r.Allowed = a.Allowed || b.Allowed", "SeveralLimitsHold"},
	{"the shortest wait of several", "ratelimit.go", "r.RetryAfter = max(a.RetryAfter, b.RetryAfter)", "r.RetryAfter = min(a.RetryAfter, b.RetryAfter)", "SeveralLimitsHold"},
	{"a dry run counts with what is enforced", "options.go", `return c.name + " (dry-run)"`, `return c.name + ""`, "DryRun"},
	{"a late refund reaches the next window", "ratelimit.go", "left[i] -= elapsed", "left[i] -= 0 * elapsed", "ALateRefund"},
	{"a panic looks like success to a refund", "ratelimit.go", "c.Status(http.StatusInternalServerError) // as", "_ = c // as", "PanickingHandler|RefundAsks"},
	{"no refund where the client has hung up", "ratelimit.go", "context.WithoutCancel(c.Request.Context())", "c.Request.Context()", "Refund"},
	{"a refund that fails is silent", "ratelimit.go", "left); err != nil && l.observer", "left); err == nil && l.observer", "ARefundThatFails"},
	{"a negative cost is passed on", "ratelimit.go", "\tif cost < 0 {", "\tif cost < -1000 {", "CostOfARequest"},
	{"a long key is kept", "ratelimit.go", "\tif len(key) > maxKeyLen {", "\tif false {", byKey},

	// Keys.
	{"an IPv4 address mapped into IPv6 is another client", "clientip.go", `return addr.Unmap().WithZone("")`, `return addr.WithZone("")`, byIP},
	{"the same of the peer", "clientip.go", `return ap.Addr().Unmap().WithZone("")`, `return ap.Addr().WithZone("")`, byIP},
	{"IPv6 is not masked", "clientip.go", "addr.Prefix(env.ipv6Prefix)", "addr.Prefix(128)", byIP},
	{"headers are believed from everyone", "clientip.go", "case trust.everyone:", "case false:", byIP},
	{"an X-Real-IP of the client's is believed", "clientip.go", "if !fromPlatform && !leadsTo(", "if false && !leadsTo(", byIP},
	{"joined keys run together", "keyfunc.go", `dst = append(dst, "%2B"...)`, `dst = append(dst, '+')`, byKey},
	{"a missing part of a joined key is one for all", "keyfunc.go", "part = env.appendAnonymous(nil, c)", "part = nil", byKey},
	{"a function of the user's can name any client", "keyfunc.go", "return k.appendValue(dst, k.fn(c))", "return append(dst, k.fn(c)...), true", byKey},
	{"routes are counted by path", "keyfunc.go", "pattern := c.FullPath()", "pattern := c.Request.URL.Path", "KeyByRoute"},
	{"hashes of 16 bits", "keyfunc.go", "sum[:16]", "sum[:2]", "ObserverSees|KeysInRedis"},

	// Found by reading, and then shown by a test.
	{"token bucket: a denial under a smaller burst refills", "budget.go", "if latest := now + b.span; st", "if latest := now + b.capacity.whole; st", "ASmallerBurst"},
	{"lua token bucket: a denial under a smaller burst refills", "lua/token_bucket.lua", "local latest = now + ARGV[at + 5]", "local latest = empty", "ASmallerBurst"},
	{"lua sliding counter: the start is in ticks of the limit", "lua/sliding_window_counter.lua", "start[i] * arg(i, 3), count[i]", "start[i], count[i]", "ItsTicks"},
	{"memory: who is denied a large cost makes room", "table.go", "if needs := e.needs(); remaining < needs {", "if needs := e.needs(); remaining < min(1, needs) {", "ALargeCost"},
	{"a log keeps its memory", "budget.go", " && 8*r.count <= len(r.times)", " && false", "ALogShrinks"},
	{"a deadline is a hang-up", "failure.go", "errors.Is(ctx.Err(), context.Canceled) }", "ctx.Err() != nil }", "ADeadlineOf"},
	{"a deadline says nothing of the store", "failure.go", "case hurried && ctx.Err() != nil:", "case ctx.Err() != nil:", "ADeadlineOf"},
	{"a clock set back keeps a broken store from being tried", "failure.go", "wait > 0 && wait <= pause", "wait > 0", "AClockSetBackDoes"},
	{"deny cache: the wait is counted from the question", "denycache.go", "since: answered", "since: asked", "ADenialHoldsFrom"},
	{"a colon that is no parameter has no rule", "routes.go", "return strings.ReplaceAll(pattern, `\\:`, \":\")", "return pattern", "AColonThat"},
	{"limiters of one name do not share what stands in", "store.go", "first != nil {\n\t\treturn first", "first != nil {\n\t\treturn own", "LimitersOfOneName"},
	{"a reset forgets what the function has chosen", "ratelimit.go", "if add(p) {", "if false {", "TheFunctionHasChosen"},
	{"a preflight is free despite a rule for OPTIONS", "ratelimit.go", "isPreflight(c.Request) && !l.hasRuleForOptions(c) ||", "isPreflight(c.Request) ||", "APreflightOfARoute"},
	{"a reply that contradicts itself is a decision", "store_redis.go", "if !b.possible(st, now, cost, fits) {", "if false {", "FuzzReadReply"},
}
