-- Reading a job for claim, and leasing it.
local JOB_FIELDS = { 'status', 'class', 'token', 'seq', 'reply', 'retain', 'created', 'claimed', 'level', 'tenant', 'cap',
  'endpoint', 'stream', 'attached', 'attempts', 'cost', 'deadline', 'score', 'need', 'ptok', 'pfx', 'preempts' }

local function read_job(p, id)
  local values, job = redis.call('HMGET', p .. 'job:' .. id, unpack(JOB_FIELDS)), {}
  for i, name in ipairs(JOB_FIELDS) do job[name] = values[i] end
  return job
end

local function settle_fields(job)
  local values = {}
  for i, name in ipairs(SETTLE_FIELDS) do values[i] = job[name] end
  return values
end

local function take(p, id, job, ask, now)
  local attempts = job.attempts + 1
  local token = redis.call('HINCRBY', p .. 'job:' .. id, 'token', 1)
  redis.call('HSET', p .. 'job:' .. id, 'status', 'running', 'worker', ask.worker, 'claimed', now, 'attempts', attempts,
    'seq', 0)
  redis.call('ZREM', p .. 'aging', id)
  redis.call('ZADD', p .. 'leases', now + ask.lease_ms, id)
  redis.call('HINCRBY', p .. 'stats', 'claimed:' .. job.class, 1)
  take_cap(p, job.tenant, job.cap)
  if job.pfx then remember(p, job.pfx, ask.worker, now) end
  if ask.holds then redis.call('DEL', p .. 'hold') end
  if ask.kv >= 0 then ask.kv = ask.kv - (tonumber(job.need) or 0) end
  if ask.prefill >= 0 then ask.prefill = ask.prefill - tonumber(job.ptok) end
  if tonumber(job.class) >= 2 then ask.bulk = ask.bulk - 1 end
  tell(p, id, '', 'running ' .. token .. ' 0 ' .. (now - job.created) .. ' running', ask.worker)
  return { id, token, job.class, job.endpoint, job.stream, job.attached, attempts, job.cost, job.deadline, job.tenant,
    job.need or 0, job.preempts or 0, redis.call('GET', p .. 'in:' .. id) or '' }
end
