-- Ends a job because its caller wants no answer any more, or its deadline has passed; a running one is aborted in its engine.
-- KEYS: 1 prefix, 2 job
-- ARGV: 1 id, 2 1: only if its deadline has passed
-- RETURNS: the status before, or false if there is no such job
-- INVARIANT: a job that has ended stays as it ended; none expires before its deadline.
-- INCLUDES: now, tell, place, cap, settle
local job = redis.call('HMGET', KEYS[2], unpack(SETTLE_FIELDS))
if job[1] ~= 'queued' and job[1] ~= 'running' then return job[1] end
local now, is_overdue = now_ms(), ARGV[2] == '1'
if is_overdue and tonumber(redis.call('HGET', KEYS[2], 'deadline')) > now then return job[1] end
settle(KEYS[1], ARGV[1], job, is_overdue and 'expired' or 'cancelled', now, '', 0)
return job[1]
