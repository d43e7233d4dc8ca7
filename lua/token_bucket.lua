-- Token bucket, as GCRA: one timestamp, the theoretical arrival time (TAT), is
-- the bucket. A request of cost c moves it on by c*W/L, and passes if it is then
-- at most B*W/L ahead of now.
--
-- KEYS[i]  the TAT of limit i; all in one slot. The value is "us", or
--          "us:fraction:L" with a fraction in 1/L of a microsecond, so that
--          nothing is lost to rounding
-- ARGV     op ("take", "peek" or "refund"), cost, and for each limit:
--          L, c*W/L (whole, fraction), B*W/L (whole, fraction),
--          left (refund: 0 to leave this limit alone)
-- Returns  now in us, and for each limit: 1 if the cost fits (else 0), TAT, its
--          fraction, 0
--
-- The products are made by the caller, in 128 bits; here are only sums of
-- integers below 2^53, which are exact.

local op = ARGV[1]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local tat, part, nextTat, nextPart, fits, mend = {}, {}, {}, {}, {}, {}
local all = true

local function arg(i, j) return tonumber(ARGV[6 * i + j - 4]) end

local function later(a, af, b, bf) return a > b or (a == b and af > bf) end

local function store(i, t, f)
  if not later(t, f, now, 0) then -- full: as if it had never been used
    redis.call('DEL', KEYS[i])
    return
  end
  local value = string.format('%.0f', t)
  if f > 0 then
    value = value .. string.format(':%.0f:%.0f', f, arg(i, 1))
  end
  redis.call('SET', KEYS[i], value, 'PX', string.format('%.0f', math.max(1, math.ceil((t - now) / 1000))))
end

for i = 1, #KEYS do
  local t, f = now, 0
  local value = redis.call('GET', KEYS[i])
  if value then
    local whole, fraction, parts = string.match(value, '^(%d+):?(%d*):?(%d*)$')
    if not whole then
      return redis.error_reply('WRONGTYPE not the value of a token bucket')
    end
    t, f = tonumber(whole), tonumber(fraction) or 0
    if f > 0 and tonumber(parts) ~= arg(i, 1) then -- in parts of another L
      t, f = t + 1, 0
    end
    if t < now then
      t, f = now, 0
    end
    local empty, emptyPart = now + arg(i, 4), arg(i, 5)
    if later(t, f, empty, emptyPart) then -- the clock was set back
      t, f, mend[i] = empty, emptyPart, true
    end
  end
  local n, nf = t + arg(i, 2), f + arg(i, 3)
  if nf >= arg(i, 1) then
    n, nf = n + 1, nf - arg(i, 1)
  end
  tat[i], part[i], nextTat[i], nextPart[i] = t, f, n, nf
  fits[i] = not later(n, nf, now + arg(i, 4), arg(i, 5))
  all = all and fits[i]
end

for i = 1, #KEYS do
  if op == 'take' and all then
    tat[i], part[i] = nextTat[i], nextPart[i]
    store(i, tat[i], part[i])
  elseif op == 'refund' and arg(i, 6) ~= 0 then
    local t, f = tat[i] - arg(i, 2), part[i] - arg(i, 3)
    if f < 0 then
      t, f = t - 1, f + arg(i, 1)
    end
    if later(tat[i], part[i], now, 0) then
      store(i, t, f)
    end
  elseif mend[i] then
    store(i, tat[i], part[i])
  end
end

local reply = {now}
for i = 1, #KEYS do
  reply[#reply + 1] = fits[i] and 1 or 0
  reply[#reply + 1] = tat[i]
  reply[#reply + 1] = part[i]
  reply[#reply + 1] = 0
end
return reply
