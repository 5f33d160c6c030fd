-- How much is claimed before a job that waits.
-- KEYS: 1 prefix, 2 job
-- ARGV: 1 id, 2 aged share in percent
-- RETURNS: {jobs, predicted ms}, or {} if it is not ready to be claimed
-- INVARIANT: reads only.
-- INCLUDES: ahead
local job = redis.call('HMGET', KEYS[2], 'class', 'level')
if not job[1] then return {} end
local level = job[2] or job[1]
local promoted = level < job[1]
local rank = redis.call('ZRANK', KEYS[1] .. (promoted and 'aged:' or 'ready:') .. level, ARGV[1])
if not rank then return {} end
return { ahead(KEYS[1], tonumber(level), promoted, rank, tonumber(ARGV[2])) }
