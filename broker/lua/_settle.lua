-- The one place where a job ends. `job`: HMGET of SETTLE_FIELDS.
-- Starts with ZREM, which Redis never refuses for want of memory; after a first write the rest is let through.
-- `keep_ms` > 0 keeps the request (dead letters); `data` is what waiters are told: the answer, or the error.
local SETTLE_FIELDS = { 'status', 'class', 'token', 'seq', 'reply', 'retain', 'created', 'claimed', 'level', 'tenant',
  'cap' }

local function settle(p, id, job, status, now, data, keep_ms)
  redis.call('ZREM', p .. 'leases', id)
  redis.call('ZREM', p .. 'deadlines', id)
  redis.call('ZREM', p .. 'ready:' .. job[2], id)
  redis.call('ZREM', p .. 'delayed', id)
  redis.call('ZREM', p .. 'aging', id)
  if job[9] < job[2] then redis.call('ZREM', p .. 'aged:' .. job[9], id) end
  if job[11] then redis.call('ZREM', p .. 'capped:' .. job[10], id) end
  local key = p .. 'job:' .. id
  local retain = math.max(tonumber(job[6]), keep_ms or 0, 1)
  redis.call('HSET', key, 'status', status, 'finished', now)
  if keep_ms and keep_ms > 0 then
    redis.call('PEXPIRE', p .. 'in:' .. id, keep_ms)
  else
    redis.call('DEL', p .. 'in:' .. id)
  end
  if data ~= '' then redis.call('SET', p .. 'res:' .. id, data, 'PX', retain) end
  redis.call('PEXPIRE', key, retain)
  redis.call('PEXPIRE', p .. 'out:' .. id, retain)
  redis.call('PEXPIRE', p .. 'hist:' .. id, retain)
  redis.call('HINCRBY', p .. 'stats', status .. ':' .. job[2], 1)
  if job[1] == 'running' then
    free_cap(p, job[10], job[11], now)
    if status ~= 'succeeded' then redis.call('PUBLISH', p .. 'control', 'abort ' .. id .. ' ' .. job[3]) end
  end
  local queue_ms = (tonumber(job[8]) or now) - tonumber(job[7])
  tell(p, id, job[5], 'done ' .. job[3] .. ' ' .. job[4] .. ' ' .. queue_ms .. ' ' .. status, data)
end
