-- Reading a job for claim, and leasing it.
local JOB_FIELDS = { 'status', 'class', 'token', 'created', 'tenant', 'cap', 'endpoint', 'stream', 'attached',
  'attempts', 'cost', 'deadline', 'need', 'ptok', 'slots', 'pfx', 'preempts', 'heir', 'plan', 'fall', 'trace' }

local function read_job(p, id)
  local values, job = redis.call('HMGET', p .. 'job:' .. id, unpack(JOB_FIELDS)), {}
  for i, name in ipairs(JOB_FIELDS) do job[name] = values[i] end
  return job
end

-- Higher than any token that the job has had. The low 16 bits are the claim's own: after a failover that lost a claim,
-- the next one must not mint what the worker of the lost one holds.
local function mint(old, ask, now)
  ask.mark = ask.mark or tonumber(string.sub(redis.sha1hex(ask.worker .. ' ' .. now), 1, 4), 16)
  return (math.floor(old / 65536) + 1) * 65536 + ask.mark
end

-- Why it is this worker that took it, for people (api/story.py): where its queue is (h its home, s another shard, e another
-- pool, r only to rescue the job), a promoted, w its prefix is warm here, or m on another one, up to so many blocks, k room was
-- kept for it, p a probe.
local HOMES = { ['0'] = 'h', ['1'] = 's', ['2'] = 'e' }
local function reason(p, set, job, ask)
  local aged = string.sub(set, #p + 1, #p + 4) == 'aged' and 'a' or ''
  return (rescues(ask) and 'r' or HOMES[ask.home]) .. aged .. job.warm .. (ask.holds and 'k' or '') .. (ask.probing and 'p' or '')
end

-- Its row in claim's answer lacks the payload, which `lease` adds.
local function take(p, id, set, job, ask, now)
  local attempts, token = (job.attempts or 0) + 1, mint(job.token or 0, ask, now)
  redis.call('HSET', p .. 'job:' .. id, 'status', 'running', 'token', token, 'worker', ask.worker, 'claimed', now,
    'attempts', attempts, 'seq', 0, 'why', reason(p, set, job, ask))
  ask.rows[#ask.rows + 1] = { id, token, job.class, job.endpoint, job.stream or 0, job.attached or '0', attempts, job.cost or 0,
    job.deadline, job.tenant, job.need or 0, job.preempts or 0, job.heir or '', job.plan or '',
    job.ptok or 0, job.slots or 1, now - job.created, job.trace or '' }
  ask.from[set] = ask.from[set] or {}
  table.insert(ask.from[set], id)
  ask.taken[#ask.taken + 1] = id
  ask.deadlines[#ask.deadlines + 1] = job.deadline
  ask.deadlines[#ask.deadlines + 1] = id
  ask.count[job.class] = (ask.count[job.class] or 0) + 1
  ask.cost[job.class] = (ask.cost[job.class] or 0) + (tonumber(job.cost) or 0)
  ask.free = ask.probing and 0 or ask.free - slots_of(ask, job)
  take_cap(p, job.tenant, job.cap)
  if job.pfx then remember(p, job.pfx, ask.worker, now) end
  if ask.kv >= 0 then ask.kv = math.max(0, ask.kv - (tonumber(job.need) or 0)) end
  if ask.prefill >= 0 and tonumber(job.class) >= 2 then
    ask.prefill = math.max(0, ask.prefill - (tonumber(job.ptok) or 0))
  end
  if tonumber(job.class) >= 2 then ask.bulk = ask.bulk - slots_of(ask, job) end
  tell(p, id, '', 'running ' .. token .. ' 0 ' .. (now - job.created) .. ' running', ask.worker)
end

-- What all taken jobs have in common, in as few commands as it takes.
local function lease(p, ask, now)
  if #ask.taken == 0 then return end
  local leases, payloads = {}, {}
  for i, id in ipairs(ask.taken) do
    leases[#leases + 1] = now + ask.lease_ms
    leases[#leases + 1] = id
    payloads[i] = p .. 'in:' .. id
  end
  for set, ids in pairs(ask.from) do redis.call('ZREM', set, unpack(ids)) end
  for i, payload in ipairs(redis.call('MGET', unpack(payloads))) do ask.rows[i][19] = payload or '' end
  redis.call('ZREM', p .. 'aging', unpack(ask.taken))
  redis.call('ZADD', p .. 'deadlines', unpack(ask.deadlines))
  redis.call('ZADD', p .. 'leases', unpack(leases))
  for class, n in pairs(ask.count) do
    redis.call('HINCRBY', p .. 'stats', 'claimed:' .. class, n)
    redis.call('HINCRBY', p .. 'stats', 'claimed_ms:' .. class, ask.cost[class])
    count_waiting(p, class, -n, -ask.cost[class])
  end
  if ask.home == '1' then redis.call('HINCRBY', p .. 'stats', 'stolen_shard', #ask.taken) end
  if ask.holds then redis.call('DEL', p .. 'hold') end
  note_probe(p, ask, now)
end
