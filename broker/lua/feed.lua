-- Lets a held job into its ready set before its hold runs out.
-- KEYS: 1 job, 2 delayed, 3 prefix
-- ARGV: 1 id
-- RETURNS: 1 fed, 0 it was not held
-- INVARIANT: a retry's delay is not cut short; only a job that was never claimed is fed.
-- INCLUDES: now, place, requeue
local job = redis.call('HMGET', KEYS[1], 'status', 'attempts')
if job[1] ~= 'queued' or (job[2] or '0') ~= '0' then return 0 end
if redis.call('ZREM', KEYS[2], ARGV[1]) == 0 then return 0 end
requeue(KEYS[3], ARGV[1], now_ms(), 0)
return 1
