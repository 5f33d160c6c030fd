-- One heartbeat of a worker: its record, and the leases it holds.
-- KEYS: 1 prefix, 2 leases, 3 workers, 4 worker
-- ARGV: 1 worker, 2 lease_ms, 3 record_ttl_ms, 4 record (JSON), 5 wish that it knows of, 6.. id, token pairs
-- RETURNS: {what its operator wishes of it ('' nothing, 'pause', 'drain'), then the ids that are no longer this worker's}
-- INVARIANT: only a running job whose token matches is renewed.
-- INCLUDES: now
local now = now_ms()
redis.call('ZREM', KEYS[3], ARGV[1]) -- a first write that memory pressure cannot refuse
redis.call('ZADD', KEYS[3], now, ARGV[1])
local known = redis.call('HMGET', KEYS[4], 'record', 'wish')
local wish = known[2] or (known[1] and '' or ARGV[5]) -- a record that ran out took the wish along
redis.call('HSET', KEYS[4], 'record', ARGV[4], 'seen', now)
if wish ~= '' and not known[2] then redis.call('HSET', KEYS[4], 'wish', wish) end
redis.call('PEXPIRE', KEYS[4], ARGV[3])
local answer = { wish }
for i = 6, #ARGV, 2 do
  local job = redis.call('HMGET', KEYS[1] .. 'job:' .. ARGV[i], 'status', 'token')
  if job[1] == 'running' and job[2] == ARGV[i + 1] then
    redis.call('ZADD', KEYS[2], 'XX', now + ARGV[2], ARGV[i])
  else
    answer[#answer + 1] = ARGV[i]
  end
end
return answer
