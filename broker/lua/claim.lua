-- Leases up to n ready jobs to a worker, best first, after moving due retries back to their ready sets.
-- KEYS: 1 prefix, 2-5 ready:0..3, 6 delayed, 7 leases, 8 marker, 9 stats
-- ARGV: 1 worker, 2 n, 3 lease_ms
-- RETURNS: {more 0|1, ms until the next retry is due or -1, job, job, ...},
--          job = {id, token, class, endpoint, stream, attached, attempts, cost_ms, deadline_ms, tenant, payload}
-- INVARIANT: a job is leased to one worker at a time; its token is higher than any it had before.
-- INCLUDES: now, tell, settle, requeue
local DUE_AT_ONCE = 64
local FIELDS = { 'status', 'class', 'token', 'seq', 'reply', 'retain', 'created', 'claimed',
  'endpoint', 'stream', 'attached', 'attempts', 'cost', 'deadline', 'tenant', 'score' }
local p, now, wanted = KEYS[1], now_ms(), tonumber(ARGV[2])

for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[6], '-inf', now, 'LIMIT', 0, DUE_AT_ONCE)) do
  redis.call('ZREM', KEYS[6], id)
  local job = redis.call('HMGET', p .. 'job:' .. id, 'class', 'score')
  if job[1] then requeue(p, id, job[1], job[2], now, 0) end
end

local jobs = {}
local function take(id, job)
  local token = redis.call('HINCRBY', p .. 'job:' .. id, 'token', 1)
  redis.call('HSET', p .. 'job:' .. id, 'status', 'running', 'worker', ARGV[1], 'claimed', now,
    'attempts', job[12] + 1, 'seq', 0)
  redis.call('ZADD', KEYS[7], now + ARGV[3], id)
  redis.call('HINCRBY', KEYS[9], 'claimed:' .. job[2], 1)
  tell(p, id, '', 'running ' .. token .. ' 0 ' .. (now - job[7]) .. ' running', ARGV[1])
  jobs[#jobs + 1] = { id, token, job[2], job[9], job[10], job[11], job[12] + 1, job[13], job[14], job[15],
    redis.call('GET', p .. 'in:' .. id) or '' }
end

for class = 0, 3 do
  if #jobs >= wanted then break end
  for _, id in ipairs(redis.call('ZRANGE', KEYS[2 + class], 0, wanted - #jobs - 1)) do
    redis.call('ZREM', KEYS[2 + class], id)
    local job = redis.call('HMGET', p .. 'job:' .. id, unpack(FIELDS))
    if job[1] == 'queued' and tonumber(job[14]) <= now then
      settle(p, id, job, 'expired', now, '', 0)
    elseif job[1] == 'queued' then
      take(id, job)
    end
  end
  -- jobs past their deadline used up the read: the rest of this class is still before the next one
  if #jobs < wanted and redis.call('ZCARD', KEYS[2 + class]) > 0 then break end
end

local more = 0
for class = 0, 3 do more = more + redis.call('ZCARD', KEYS[2 + class]) end
if more > 0 then redis.call('ZADD', KEYS[8], 0, 'work') end
local due = redis.call('ZRANGE', KEYS[6], 0, 0, 'WITHSCORES')
local wait = due[2] and math.max(0, due[2] - now) or -1
return { more > 0 and 1 or 0, wait, unpack(jobs) }
