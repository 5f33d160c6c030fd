-- Ends a job with the engine's answer, or with an error that no retry would cure.
-- KEYS: 1 prefix, 2 job, 3 stats
-- ARGV: 1 id, 2 token, 3 status (succeeded|failed), 4 data, 5 prompt, 6 completion, 7 cached tokens
-- RETURNS: 1 done, 2 this token had done it before, 0 the token is stale
-- INVARIANT: a job ends once; a stale token changes nothing.
-- INCLUDES: now, tell, place, cap, settle
local job = redis.call('HMGET', KEYS[2], unpack(SETTLE_FIELDS))
if job[3] ~= ARGV[2] then return 0 end
if job[1] == ARGV[3] then return 2 end
if job[1] ~= 'running' then return 0 end
local now = now_ms()
settle(KEYS[1], ARGV[1], job, ARGV[3], now, ARGV[4], 0)
redis.call('HSET', KEYS[2], 'prompt_used', ARGV[5], 'output_used', ARGV[6], 'cached_used', ARGV[7])
redis.call('HINCRBY', KEYS[3], 'tokens_in', ARGV[5])
redis.call('HINCRBY', KEYS[3], 'tokens_out', ARGV[6])
redis.call('HINCRBY', KEYS[3], 'tokens_cached', ARGV[7])
local run, mean = now - job[8], redis.call('HGET', KEYS[3], 'run_ms')
redis.call('HSET', KEYS[3], 'run_ms', mean and 0.95 * mean + 0.05 * run or run)
return 1
