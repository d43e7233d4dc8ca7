-- Sliding window counter: the count of this window, and that of the one before
-- as far as the sliding window still covers it.
--
-- KEYS[i]  limit i; all in one slot. The value is "start:count:before", start in
--          microseconds. Time is counted in ticks of so many of them that L*W
--          stays below 2^53, where Lua's numbers are exact
-- ARGV     op ("take", "peek" or "refund"), cost, and for each limit:
--          quota, period in ticks, us in a tick, left in ticks (refund: what is
--          left of the decision that is given back, 0 for nothing, -1 for no
--          decision in particular)
-- Returns  now in us, and for each limit: 1 if the cost fits (else 0), start,
--          count, before

local op, cost = ARGV[1], tonumber(ARGV[2])
local time = redis.call('TIME')
local micros = tonumber(time[1]) * 1000000 + tonumber(time[2])
local start, count, before, fits, mend = {}, {}, {}, {}, {}
local all = true

local function arg(i, j) return tonumber(ARGV[4 * i + j - 2]) end

local function tick(i) return math.floor(micros / arg(i, 3)) end

local function store(i)
  if count[i] + before[i] == 0 then
    redis.call('DEL', KEYS[i])
    return
  end
  local left = (start[i] + 2 * arg(i, 2)) * arg(i, 3) - micros
  redis.call('SET', KEYS[i], string.format('%.0f:%.0f:%.0f', start[i] * arg(i, 3), count[i], before[i]),
    'PX', string.format('%.0f', math.max(1, math.ceil(left / 1000))))
end

for i = 1, #KEYS do
  local now, period = tick(i), arg(i, 2)
  local s, n, b = now, 0, 0
  local value = redis.call('GET', KEYS[i])
  if value then
    local vs, vn, vb = string.match(value, '^(%d+):(%d+):(%d+)$')
    if not vs then
      return redis.error_reply('WRONGTYPE not the value of a sliding window counter')
    end
    s, n, b = math.floor(vs / arg(i, 3)), tonumber(vn), tonumber(vb)
    local elapsed = now - s
    if elapsed >= 2 * period then
      s, n, b = now, 0, 0
    elseif elapsed >= period then
      b = n -- not in one assignment with the next: gopher-lua confuses them
      s, n = s + period, 0
    elseif elapsed < 0 then -- the clock was set back
      s, mend[i] = now, true
    end
    if n + b == 0 then
      s = now
    end
  end
  start[i], count[i], before[i] = s, n, b
  local free = arg(i, 1) - n - cost
  fits[i] = free >= 0 and b * (period - (now - s)) <= free * period
  all = all and fits[i]
end

for i = 1, #KEYS do
  local left = arg(i, 4)
  if op == 'take' and all then
    count[i] = count[i] + cost
    store(i)
  elseif op == 'refund' and count[i] > 0 and (left < 0 or start[i] + 2 * arg(i, 2) - tick(i) <= left) then
    count[i] = math.max(0, count[i] - cost)
    store(i)
  elseif mend[i] then
    store(i)
  end
end

local reply = {micros}
for i = 1, #KEYS do
  reply[#reply + 1] = fits[i] and 1 or 0
  reply[#reply + 1] = start[i]
  reply[#reply + 1] = count[i]
  reply[#reply + 1] = before[i]
end
return reply
