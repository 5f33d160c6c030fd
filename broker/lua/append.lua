-- Adds chunks of a running job's output to its replay buffer and tells the readers.
-- KEYS: 1 job, 2 output, 3 prefix
-- ARGV: 1 id, 2 token, 3 seq of the last chunk, 4 chunks, 5 maxlen
-- RETURNS: 1 written (or written before), 0 the token is stale
-- INVARIANT: a stale token adds nothing; seq grows within a token.
-- INCLUDES: now, tell
local job = redis.call('HMGET', KEYS[1], 'status', 'token', 'seq', 'reply', 'created', 'claimed', 'first')
if job[1] ~= 'running' or job[2] ~= ARGV[2] then return 0 end
if tonumber(ARGV[3]) <= tonumber(job[3]) then return 1 end
redis.call('PERSIST', KEYS[1]) -- changes nothing: a first write that memory pressure cannot refuse
if job[7] then
  redis.call('HSET', KEYS[1], 'seq', ARGV[3])
else
  redis.call('HSET', KEYS[1], 'seq', ARGV[3], 'first', now_ms())
end
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[5], ARGV[2] .. '-' .. ARGV[3], 'd', ARGV[4])
local queue_ms = job[6] - job[5]
tell(KEYS[3], ARGV[1], job[4], 'chunk ' .. ARGV[2] .. ' ' .. ARGV[3] .. ' ' .. queue_ms .. ' running', ARGV[4])
return 1
