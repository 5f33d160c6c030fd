-- Whether a worker should take a job now. `ask` is what claim was given; it is counted down as jobs are taken.
-- Answers 'take', or why not: 'pass' (it does not fit, others may go first), 'hold' (keep room for it), 'wait' (another
-- worker has its prefix; the second value is for how many ms more that is respected).
local function too_big(p, id, job, ask, now)
  local skips = redis.call('HINCRBY', p .. 'job:' .. id, 'skips', 1)
  redis.call('HSETNX', p .. 'job:' .. id, 'since', now)
  local since = tonumber(redis.call('HGET', p .. 'job:' .. id, 'since'))
  if ask.need > ask.kv_total or (skips <= ask.bypass_n and now - since <= ask.bypass_ms) then return 'pass' end
  redis.call('SET', p .. 'hold', ask.worker, 'PX', ask.lease_ms, 'NX')
  return redis.call('GET', p .. 'hold') == ask.worker and 'hold' or 'pass'
end

local function weigh(p, id, job, ask, now)
  if tonumber(job.class) >= 2 and ask.bulk <= 0 then return 'pass' end
  ask.need = tonumber(job.need) or 0
  if ask.kv >= 0 and ask.need > ask.kv then return too_big(p, id, job, ask, now) end
  if ask.prefill >= 0 and (tonumber(job.ptok) or 0) > ask.prefill then return 'pass' end
  if not job.pfx then return 'take' end
  local owner = holder(p, job.pfx, now, ask.lease_ms)
  if not owner then return 'take', 'missed' end
  if owner == ask.worker then return 'take', 'local' end
  local left = ask.patience_ms - (now - job.created)
  if left <= 0 then return 'take', 'stolen' end
  redis.call('ZADD', p .. 'marker:' .. owner, 0, 'work') -- it may be asleep
  redis.call('PEXPIRE', p .. 'marker:' .. owner, 10000)
  return 'wait', left
end
