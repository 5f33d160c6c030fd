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
  local attempts, token = (job.attempts or 0) + 1, (job.token or 0) + 1
  redis.call('HSET', p .. 'job:' .. id, 'status', 'running', 'token', token, 'worker', ask.worker, 'claimed', now,
    'attempts', attempts, 'seq', 0)
  ask.taken[#ask.taken + 1] = id
  ask.deadlines[#ask.deadlines + 1] = job.deadline
  ask.deadlines[#ask.deadlines + 1] = id
  ask.count[job.class] = (ask.count[job.class] or 0) + 1
  take_cap(p, job.tenant, job.cap)
  if job.pfx then remember(p, job.pfx, ask.worker, now) end
  if ask.kv >= 0 then ask.kv = ask.kv - (tonumber(job.need) or 0) end
  if ask.prefill >= 0 then ask.prefill = ask.prefill - (tonumber(job.ptok) or 0) end
  if tonumber(job.class) >= 2 then ask.bulk = ask.bulk - 1 end
  tell(p, id, '', 'running ' .. token .. ' 0 ' .. (now - job.created) .. ' running', ask.worker)
  return { id, token, job.class, job.endpoint, job.stream or 0, job.attached or 0, attempts, job.cost or 0, job.deadline,
    job.tenant, job.need or 0, job.preempts or 0, redis.call('GET', p .. 'in:' .. id) or '' }
end

-- What all taken jobs have in common, in as few commands as it takes.
local function lease(p, ask, now)
  if #ask.taken == 0 then return end
  local leases = {}
  for _, id in ipairs(ask.taken) do
    leases[#leases + 1] = now + ask.lease_ms
    leases[#leases + 1] = id
  end
  redis.call('ZREM', p .. 'aging', unpack(ask.taken))
  redis.call('ZADD', p .. 'deadlines', unpack(ask.deadlines))
  redis.call('ZADD', p .. 'leases', unpack(leases))
  for class, n in pairs(ask.count) do redis.call('HINCRBY', p .. 'stats', 'claimed:' .. class, n) end
  if ask.holds then redis.call('DEL', p .. 'hold') end
end
