-- The one place where a job ends. `job`: HMGET of SETTLE_FIELDS; `...`: more name, value pairs for its hash.
-- `keep_ms` > 0 keeps the request (dead letters); `data` is what waiters are told: the answer, or the error.
local SETTLE_FIELDS = { 'status', 'class', 'token', 'seq', 'reply', 'retain', 'created', 'claimed', 'level', 'tenant',
  'cap', 'errors', 'deaths', 'cost', 'worker', 'probe', 'notify' }

-- Starts with ZREM, which Redis never refuses for want of memory; after a first write the rest is let through.
local function leave_sets(p, id, job)
  redis.call('ZREM', p .. 'deadlines', id)
  if job[1] == 'running' then return redis.call('ZREM', p .. 'leases', id) end -- it is in no other set
  redis.call('ZREM', p .. 'ready:' .. job[2], id)
  redis.call('ZREM', p .. 'delayed', id)
  redis.call('ZREM', p .. 'aging', id)
  if job[9] and job[9] < job[2] then redis.call('ZREM', p .. 'aged:' .. job[9], id) end
  if job[11] then redis.call('ZREM', p .. 'capped:' .. job[10], id) end
end

-- For whoever does something about ends: `notify` begins with a letter for each (broker/ends.py). Always the last of the fields.
local function note_end(p, id, notify, now)
  if not notify then return end
  for who in string.gmatch(string.match(notify, '^%l*'), '%l') do redis.call('ZADD', p .. 'ended:' .. who, now, id) end
end

-- All but leaving the sets and being counted, which `finish` does for many jobs at once.
local function conclude(p, id, job, status, now, data, keep_ms, ...)
  local key, token, seq = p .. 'job:' .. id, job[3] or '0', job[4] or '0'
  local retain = math.max(tonumber(job[6]), keep_ms or 0, 1)
  redis.call('HSET', key, 'status', status, 'finished', now, ...)
  redis.call('PEXPIRE', key, retain)
  if keep_ms and keep_ms > 0 then
    redis.call('PEXPIRE', p .. 'in:' .. id, keep_ms)
  else
    redis.call('DEL', p .. 'in:' .. id)
  end
  if data ~= '' then redis.call('SET', p .. 'res:' .. id, data, 'PX', retain) end
  if seq ~= '0' or tonumber(token) >= 2 * 65536 then redis.call('PEXPIRE', p .. 'out:' .. id, retain) end
  if status ~= 'succeeded' or job[12] or job[13] then redis.call('PEXPIRE', p .. 'hist:' .. id, retain) end
  if job[1] == 'running' then
    free_cap(p, job[10], job[11], now)
    if status ~= 'succeeded' and status ~= 'escalated' then
      redis.call('PUBLISH', p .. 'control', 'abort ' .. id .. ' ' .. token)
    end
  else
    count_waiting(p, job[2], -1, -(job[14] or 0))
    next_in(p, job[10], job[11])
  end
  local queue_ms = (tonumber(job[8]) or now) - tonumber(job[7])
  tell(p, id, job[5], 'done ' .. token .. ' ' .. seq .. ' ' .. queue_ms .. ' ' .. status, data)
  if status ~= 'escalated' then note_end(p, id, job[#SETTLE_FIELDS], now) end
end

local function settle(p, id, job, status, now, data, keep_ms, ...)
  leave_sets(p, id, job)
  redis.call('HINCRBY', p .. 'stats', status .. ':' .. job[2], 1)
  conclude(p, id, job, status, now, data, keep_ms, ...)
end
