-- Fixed window: a counter that expires with its window.
--
-- KEYS[i]  the counter of limit i; all in one slot
-- ARGV     op ("take", "peek" or "refund"), cost, and for each limit:
--          quota, period in ms, left in ms (refund: what is left of the decision
--          that is given back, 0 for nothing, -1 for no decision in particular)
-- Returns  0, and for each limit: 1 if the cost fits (else 0), count, PTTL, 0
--
-- A key is still alive at its last millisecond, so a window of W ms is a TTL of
-- W-1. The article's INCR and EXPIRE in one script: two calls for a window that
-- is open. A TTL that is missing, or beyond the window because the clock was
-- set back, is mended by the next decision.

local op, cost = ARGV[1], tonumber(ARGV[2])
local count, ttl, fits, fresh = {}, {}, {}, {}
local all = true

local function arg(i, j) return tonumber(ARGV[3 * i + j - 1]) end

local function window(i) return math.max(1, arg(i, 2) - 1) end

-- renew returns the TTL of a counter that exists, mended where it has to be.
local function renew(i)
  local left = redis.call('PTTL', KEYS[i])
  if left < 0 or left > window(i) then
    left = window(i)
    redis.call('PEXPIRE', KEYS[i], left)
  end
  return left
end

local function undo(last)
  for i = 1, last do
    count[i] = count[i] - cost
    if fresh[i] then
      redis.call('DEL', KEYS[i])
    else
      redis.call('DECRBY', KEYS[i], cost)
    end
  end
end

if op == 'take' then
  for i = 1, #KEYS do
    local n = redis.pcall('INCRBY', KEYS[i], cost)
    if type(n) == 'table' then -- not a counter: take back what was counted before it
      undo(i - 1)
      return n
    end
    count[i], fresh[i] = n, n == cost
    if fresh[i] then
      ttl[i] = window(i)
      redis.call('PEXPIRE', KEYS[i], ttl[i])
    else
      ttl[i] = renew(i)
    end
    fits[i] = n <= arg(i, 1)
    all = all and fits[i]
  end
  if not all then
    undo(#KEYS)
  end
else
  for i = 1, #KEYS do
    count[i], ttl[i] = tonumber(redis.call('GET', KEYS[i]) or 0), window(i)
    if count[i] > 0 then
      ttl[i] = renew(i)
      local left = arg(i, 3)
      if op == 'refund' and (left < 0 or ttl[i] < left) then
        count[i] = count[i] - cost
        if count[i] > 0 then
          redis.call('DECRBY', KEYS[i], cost)
        else
          redis.call('DEL', KEYS[i])
        end
      end
    end
    fits[i] = count[i] + cost <= arg(i, 1)
  end
end

local reply = {0}
for i = 1, #KEYS do
  reply[#reply + 1] = fits[i] and 1 or 0
  reply[#reply + 1] = count[i]
  reply[#reply + 1] = ttl[i]
  reply[#reply + 1] = 0
end
return reply
