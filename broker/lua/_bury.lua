-- A job whose retries are used up: failed for its caller, kept with its request and history for an operator.
local DEAD_CAP = 10000

local function bury(p, id, job, now, error, keep_ms)
  settle(p, id, job, 'failed', now, error, keep_ms)
  redis.call('ZADD', p .. 'dead', now, id)
  redis.call('ZREMRANGEBYRANK', p .. 'dead', 0, -(DEAD_CAP + 1))
  redis.call('HINCRBY', p .. 'stats', 'dead:' .. job[2], 1)
end
