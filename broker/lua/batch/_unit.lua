-- A unit is one piece of a batch's work: `plan`, a slice's number, or `finalize`.
-- What a slice is to do with lines that have no answer yet.
local function mode_of(status, expires, now)
  if status == 'cancelling' then return 'cancel' end
  return now >= tonumber(expires) and 'expire' or 'feed'
end

-- Sets a unit's counts and moves its batch's by the difference: a second run of the unit counts nothing twice.
local function count(batch, unit, completed, failed)
  local old = redis.call('HMGET', unit, 'completed', 'failed')
  redis.call('HSET', unit, 'completed', completed, 'failed', failed)
  redis.call('HINCRBY', batch, 'completed', completed - (old[1] or 0))
  redis.call('HINCRBY', batch, 'failed', failed - (old[2] or 0))
end

-- Puts a unit where the sweeper finds it, should the message about it be lost.
local function sent(batch, todo, unit, now, grace_ms)
  redis.call('ZADD', todo, now + grace_ms, unit)
  redis.call('PEXPIRE', todo, redis.call('PTTL', batch)) -- the set is made anew when it was empty
  return tostring(unit)
end
