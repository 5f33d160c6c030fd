-- Ends a job because its caller wants no answer any more; a running one is aborted in its engine.
-- KEYS: 1 prefix, 2 job
-- ARGV: 1 id
-- RETURNS: the status before, or false if there is no such job
-- INVARIANT: a job that has ended stays as it ended.
-- INCLUDES: now, tell, place, cap, settle
local job = redis.call('HMGET', KEYS[2], unpack(SETTLE_FIELDS))
if job[1] == 'queued' or job[1] == 'running' then
  settle(KEYS[1], ARGV[1], job, 'cancelled', now_ms(), '', 0)
end
return job[1]
