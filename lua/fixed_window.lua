-- Fixed window: a counter that expires with its window.
--
-- KEYS[i]  the counter of limit i; all in one slot
-- ARGV     op ("take", "peek" or "refund"), cost, and for each limit:
--          quota, TTL of a window in ms, left in ms (refund: what is left of the decision
--          that is given back, 0 for nothing, -1 for no decision in particular)
-- Returns  0, and for each limit: 1 if the cost fits (else 0), count, PTTL, 0
--
-- A key is still alive at its last millisecond, so a window of W ms is a TTL of
-- W-1. The article's INCR and EXPIRE in one script: two calls for a window that
-- is open. A TTL that is missing, or beyond the window because the clock was
-- set back, is mended by the next decision.

local op, cost = ARGV[1], tonumber(ARGV[2])
local reply = {0}
local all = true

-- renew returns the TTL of a counter that exists, mended where it has to be.
local function renew(key, window)
  local ttl = redis.call('PTTL', key)
  if ttl < 0 or ttl > window then
    ttl = window
    redis.call('PEXPIRE', key, ttl)
  end
  return ttl
end

-- undo takes back what was counted by the first limits.
local function undo(last)
  for i = 1, last do
    local count = reply[4 * i - 1] - cost
    if count > 0 then
      redis.call('DECRBY', KEYS[i], cost)
    else
      redis.call('DEL', KEYS[i])
    end
    reply[4 * i - 1] = count
  end
end

for i = 1, #KEYS do
  local key, quota, window = KEYS[i], tonumber(ARGV[3 * i]), tonumber(ARGV[3 * i + 1])
  local count, ttl, fits
  if op == 'take' then
    count, ttl = redis.pcall('INCRBY', key, cost), window
    if type(count) == 'table' then -- not a counter
      undo(i - 1)
      return count
    end
    if count == cost then
      redis.call('PEXPIRE', key, ttl)
    else
      ttl = renew(key, window)
    end
    fits = count <= quota
  else
    count, ttl = tonumber(redis.call('GET', key) or 0), window
    if count > 0 then
      ttl = renew(key, window)
      local left = tonumber(ARGV[3 * i + 2])
      if op == 'refund' and (left < 0 or ttl < left) then
        count = count - cost
        if count > 0 then
          redis.call('DECRBY', key, cost)
        else
          redis.call('DEL', key)
        end
      end
    end
    fits = count + cost <= quota
  end
  all = all and fits
  reply[4 * i - 2], reply[4 * i - 1], reply[4 * i], reply[4 * i + 1] = fits and 1 or 0, count, ttl, 0
end

if op == 'take' and not all then
  undo(#KEYS)
end
return reply
