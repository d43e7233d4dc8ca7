-- Sliding window log: the time of every request that was admitted.
--
-- KEYS[i]  a list of microseconds, oldest first, one entry for each request (a
--          request of cost c is c of them); all in one slot. A list holds equal
--          times side by side, where a sorted set would need members made unique
--          and ten times the memory
-- ARGV     op ("take", "peek" or "refund"), cost, and for each limit:
--          quota, period in us, left (refund: 0 to leave this limit alone)
-- Returns  now in us, and for each limit: 1 if the cost fits (else 0), the number
--          of entries, the newest, and the one that has to expire before the
--          cost fits (0 for none)

local op, cost = ARGV[1], tonumber(ARGV[2])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local count, newest, fits = {}, {}, {}
local all = true

local function arg(i, j) return tonumber(ARGV[3 * i + j - 1]) end

local function at(key, index)
  local value = redis.call('LINDEX', key, index)
  return value and tonumber(value)
end

-- later returns the index of the first of n entries that is later than t; it
-- looks near the old end first, where it mostly is.
local function later(key, n, t)
  local low, high, step = 0, n, 1
  while low + step < n and at(key, low + step - 1) <= t do
    low = low + step
    step = step * 2
  end
  high = math.min(n, low + step)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if at(key, middle) > t then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

-- push appends t, times over. unpack takes no more than some thousands.
local function push(key, t, times)
  local value, batch = string.format('%.0f', t), {}
  for j = 1, math.min(times, 1000) do
    batch[j] = value
  end
  while times > 0 do
    local n = math.min(times, 1000)
    redis.call('RPUSH', key, (table.unpack or unpack)(batch, 1, n))
    times = times - n
  end
end

for i = 1, #KEYS do
  local key, period = KEYS[i], arg(i, 2)
  count[i], newest[i] = 0, at(key, -1) or 0
  if newest[i] > 0 and newest[i] <= now - period then
    redis.call('DEL', key)
    newest[i] = 0
  elseif newest[i] > 0 then
    count[i] = redis.call('LLEN', key)
    if at(key, 0) <= now - period then
      local expired = later(key, count[i], now - period)
      redis.call('LTRIM', key, expired, -1)
      count[i] = count[i] - expired
    end
    if newest[i] > now then -- the clock was set back: what is in the future is now
      local past = later(key, count[i], now)
      redis.call('LTRIM', key, 0, past - 1)
      if past == 0 then
        redis.call('DEL', key)
      end
      push(key, now, count[i] - past)
      redis.call('PEXPIRE', key, string.format('%.0f', math.ceil(period / 1000)))
      newest[i] = now
    end
  end
  fits[i] = count[i] + cost <= arg(i, 1)
  all = all and fits[i]
end

for i = 1, #KEYS do
  if op == 'take' and all then
    push(KEYS[i], now, cost)
    redis.call('PEXPIRE', KEYS[i], string.format('%.0f', math.ceil(arg(i, 2) / 1000)))
    count[i], newest[i] = count[i] + cost, now
  elseif op == 'refund' and arg(i, 3) ~= 0 and count[i] > 0 then
    redis.call('LTRIM', KEYS[i], cost, -1) -- the oldest: see budget.refund
  end
end

local reply = {now}
for i = 1, #KEYS do
  local blocking = 0
  if not fits[i] and op ~= 'refund' then
    blocking = at(KEYS[i], count[i] + cost - arg(i, 1) - 1)
  end
  reply[#reply + 1] = fits[i] and 1 or 0
  reply[#reply + 1] = count[i]
  reply[#reply + 1] = newest[i]
  reply[#reply + 1] = blocking
end
return reply
