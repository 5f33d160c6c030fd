-- Whether a worker should take a job now. `ask` is what claim was given; it is counted down as jobs are taken.
-- Answers 'take' (and 'local', 'stolen' or 'missed' if the job has a prefix), or why not: 'pass' (it does not fit, others
-- may go first), 'hold' (keep room for it), 'wait' (another worker is better placed, for so many ms more).
local function takes(ask, class)
  return string.sub(ask.takes, class + 1, class + 1) == '1'
end

-- It brings jobs to another pool, those that may go there.
local function rescues(ask)
  return string.sub(ask.takes, 5) == 'r'
end

local function too_big(p, id, job, ask, now)
  local skips = redis.call('HINCRBY', p .. 'job:' .. id, 'skips', 1)
  redis.call('HSETNX', p .. 'job:' .. id, 'since', now)
  local since = tonumber(redis.call('HGET', p .. 'job:' .. id, 'since'))
  local never = ask.kv_total >= 0 and ask.need > ask.kv_total
  if never or (skips <= ask.bypass_n and now - since <= ask.bypass_ms) then return 'pass' end
  redis.call('SET', p .. 'hold', ask.worker, 'PX', ask.lease_ms, 'NX')
  return redis.call('GET', p .. 'hold') == ask.worker and 'hold' or 'pass'
end

-- Choices of one answer take a slot each; a worker with fewer slots runs them one after the other.
local function slots_of(ask, job)
  return math.min(tonumber(job.slots) or 1, ask.slots)
end

-- Only batch prompts are made to wait for the engine to read others, and none longer than for it to read nothing else.
local function reads_too_much(ask, job)
  local tokens = tonumber(job.class) >= 2 and tonumber(job.ptok) or 0
  return ask.prefill >= 0 and tokens > ask.prefill and ask.prefill < ask.prefill_total
end

local function weigh(p, id, job, ask, now)
  if not takes(ask, job.class) or (rescues(ask) and not job.fall) then return 'pass' end
  if tonumber(job.class) >= 2 and ask.bulk <= 0 then return 'pass' end
  if reads_too_much(ask, job) then return 'pass' end
  ask.need = tonumber(job.need) or 0
  local idle = ask.free >= ask.slots -- takes any one job: its engine alone can say that it is too big
  local fits = (ask.kv < 0 or ask.need <= ask.kv) and slots_of(ask, job) <= ask.free
  if not fits and not idle then return too_big(p, id, job, ask, now) end
  local owner, warm
  if job.pfx then owner, warm = holder(p, job.pfx, now, ask.lease_ms) end
  local other, left = better_placed(p, ask, owner, now - job.created)
  if not other or not would_take(p, other, job.class) then
    job.warm = owner and (owner == ask.worker and 'w' or 'm') .. warm or ''
    return 'take', job.pfx and (owner == ask.worker and 'local' or owner and 'stolen' or 'missed')
  end
  redis.call('ZADD', p .. 'marker:' .. other, 0, 'work') -- it may be asleep
  redis.call('PEXPIRE', p .. 'marker:' .. other, 10000)
  return 'wait', left
end
