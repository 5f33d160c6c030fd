-- Concurrency caps of tenants. A job over its tenant's cap is set aside, so that it holds up nobody, until one ends.
-- `cap` is false for tenants without one.
local function over_cap(p, tenant, cap)
  return cap and tonumber(redis.call('HGET', p .. 'running', tenant) or 0) >= tonumber(cap)
end

local function set_aside(p, id, tenant, score)
  redis.call('ZADD', p .. 'capped:' .. tenant, score, id)
end

local function take_cap(p, tenant, cap)
  if cap then redis.call('HINCRBY', p .. 'running', tenant, 1) end
end

-- Lets the first job that was set aside be claimed. Also when one of the tenant's jobs ends unclaimed: it may be the one
-- that the others have been waiting for.
local function next_in(p, tenant, cap)
  local next_id = cap and redis.call('ZRANGE', p .. 'capped:' .. tenant, 0, 0)[1]
  if not next_id then return end
  redis.call('ZREM', p .. 'capped:' .. tenant, next_id)
  place_stored(p, next_id)
end

local function free_cap(p, tenant, cap)
  if not cap then return end
  if redis.call('HINCRBY', p .. 'running', tenant, -1) <= 0 then redis.call('HDEL', p .. 'running', tenant) end
  next_in(p, tenant, cap)
end
