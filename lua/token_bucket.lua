-- Token bucket, as GCRA: one timestamp, the theoretical arrival time (TAT), is
-- the bucket. A request of cost c moves it on by c*W/L, and passes if it is then
-- at most B*W/L ahead of now.
--
-- KEYS[i]  the TAT of limit i; all in one slot. The value is "us", or
--          "us:fraction:L" with a fraction in 1/L of a microsecond, so that
--          nothing is lost to rounding
-- ARGV     op ("take", "peek" or "refund"), cost, and for each limit:
--          L, c*W/L (whole, fraction), B*W/L (whole, fraction), how far a TAT can
--          be ahead of now, left (refund: 0 to leave this limit alone)
-- Returns  now in us, and for each limit: 1 if the cost fits (else 0), TAT, its
--          fraction, 0
--
-- The products are made by the caller, in 128 bits; here are only sums of
-- integers below 2^53, which are exact.

local op = ARGV[1]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local reply = {now}
local all = true

-- read returns the TAT and the fraction that a value with one stands for.
local function read(value, parts)
  local t, f, of = string.match(value, '^(%d+):(%d+):(%d+)$')
  if t and tonumber(of) ~= parts then -- in parts of another L
    return t + 1, 0
  end
  return tonumber(t), tonumber(f)
end

local function store(i, t, f)
  if t < now or (t == now and f == 0) then -- full: as if it had never been used
    redis.call('DEL', KEYS[i])
    return
  end
  local value = t
  if f > 0 then
    value = string.format('%.0f:%.0f:%.0f', t, f, tonumber(ARGV[7 * i - 4]))
  end
  redis.call('SET', KEYS[i], value, 'PX', math.floor((t - now) / 1000) + 1) -- f included
end

for i = 1, #KEYS do
  local at = 7 * i - 4
  local parts, empty, emptyPart = tonumber(ARGV[at]), now + ARGV[at + 3], tonumber(ARGV[at + 4])
  local t, f = now, 0
  local value = redis.call('GET', KEYS[i])
  if value then
    t = tonumber(value)
    if not t then
      t, f = read(value, parts)
    end
    if not t then
      return redis.error_reply('WRONGTYPE not the value of a token bucket')
    end
    if t < now then
      t, f = now, 0
    elseif t >= empty then -- used under a larger burst, or the clock was set back
      local latest = now + ARGV[at + 5]
      if t > latest or (t == latest and f > 0) then
        t, f = latest, 0
        store(i, t, f)
      end
    end
  end
  local nextT, nextF = t + ARGV[at + 1], f + ARGV[at + 2]
  if nextF >= parts then
    nextT, nextF = nextT + 1, nextF - parts
  end
  local fits = nextT < empty or (nextT == empty and nextF <= emptyPart)
  all = all and fits
  reply[4 * i - 2], reply[4 * i - 1], reply[4 * i], reply[4 * i + 1] = fits and 1 or 0, t, f, 0
end

for i = 1, #KEYS do
  local at = 7 * i - 4
  local t, f = reply[4 * i - 1], reply[4 * i]
  if op == 'take' and all then
    t, f = t + ARGV[at + 1], f + ARGV[at + 2]
    if f >= tonumber(ARGV[at]) then
      t, f = t + 1, f - ARGV[at]
    end
    store(i, t, f)
    reply[4 * i - 1], reply[4 * i] = t, f
  elseif op == 'refund' and ARGV[at + 6] ~= '0' and (t > now or f > 0) then
    t, f = t - ARGV[at + 1], f - ARGV[at + 2]
    if f < 0 then
      t, f = t - 1, f + ARGV[at]
    end
    store(i, t, f)
  end
end
return reply
