-- Repairs what no script of ours leaves behind, but a lost write, a hand or a bug may. Some tens of members per call: a
-- set is walked from its end to its front, so that what leaves it meanwhile hides nothing; the rank to go on from is
-- kept in `stats`. Counts what it repairs as `reconciled:<what>`.
local STEP = 32

local function counted(p, what)
  redis.call('HINCRBY', p .. 'stats', 'reconciled:' .. what, 1)
end

local function walk(p, set, n, see)
  local key, stats, field = p .. set, p .. 'stats', 'walk:' .. set
  local size, last = redis.call('ZCARD', key), tonumber(redis.call('HGET', stats, field) or -1)
  if last < 0 or last >= size then last = size - 1 end
  if last < 0 then return end
  local first = math.max(0, last - n + 1)
  for _, id in ipairs(redis.call('ZRANGE', key, first, last)) do see(id, set) end
  if first > 0 then redis.call('HSET', stats, field, first - 1) else redis.call('HDEL', stats, field) end
end

local function home(job)
  return job[3] and job[3] < job[2] and 'aged:' .. job[3] or 'ready:' .. job[2]
end

-- Makes sure that a queued job is where claim finds it, or where it waits for something that will come.
local function settle_in(p, id, job)
  if redis.call('ZSCORE', p .. home(job), id) or redis.call('ZSCORE', p .. 'delayed', id) then return end
  local capped = job[7] and redis.call('ZSCORE', p .. 'capped:' .. job[6], id)
  if capped and over_cap(p, job[6], job[7]) then return end
  place(p, id, { job[2], job[3], job[4], job[5] })
  if not capped then return counted(p, 'queued_nowhere') end
  redis.call('ZREM', p .. 'capped:' .. job[6], id) -- there is room under the cap; not a fault if another job is about to fill it
end

local function reconcile(p, now, lease_ms, died)
  local function read(id)
    return redis.call('HMGET', p .. 'job:' .. id, 'status', 'class', 'level', 'score', 'aged', 'tenant', 'cap', 'deadline')
  end

  local function remove(id, set, what)
    redis.call('ZREM', p .. set, id)
    counted(p, what)
  end

  local function see_to_its_end(id, job)
    if redis.call('ZSCORE', p .. 'deadlines', id) or redis.call('ZSCORE', p .. 'aging', id) then return end
    redis.call('ZADD', p .. 'deadlines', job[8], id)
    counted(p, 'without_deadline')
  end

  local function pending(id, set)
    local job = read(id)
    if job[1] == 'queued' then return settle_in(p, id, job) end
    if job[1] ~= 'running' then return remove(id, set, 'member_without_job') end
    if redis.call('ZSCORE', p .. 'leases', id) then return end
    died(id)
    counted(p, 'running_without_lease')
  end

  local function leased(id, set)
    local job = read(id)
    if job[1] ~= 'running' then return remove(id, set, 'lease_without_job') end
    see_to_its_end(id, job)
    if redis.call('ZSCORE', p .. set, id) - now <= 2 * lease_ms then return end
    redis.call('ZADD', p .. set, 'XX', now + lease_ms, id) -- the clock was put back: its worker renews it, or is dead
    counted(p, 'lease_too_long')
  end

  local function waiting(id, set)
    local job = read(id)
    if job[1] ~= 'queued' or (set ~= 'delayed' and set ~= home(job)) then return remove(id, set, 'member_without_job') end
    see_to_its_end(id, job)
  end

  for _, set in ipairs({ 'deadlines', 'aging' }) do walk(p, set, STEP, pending) end
  walk(p, 'leases', STEP, leased)
  for level = 0, 3 do walk(p, 'ready:' .. level, STEP / 4, waiting) end
  for level = 0, 2 do walk(p, 'aged:' .. level, STEP / 4, waiting) end
  walk(p, 'delayed', STEP / 4, waiting)
end
