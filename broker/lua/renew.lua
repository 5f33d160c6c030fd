-- One heartbeat of a worker: its record, and the leases it holds.
-- KEYS: 1 prefix, 2 leases, 3 workers, 4 worker
-- ARGV: 1 worker, 2 lease_ms, 3 record_ttl_ms, 4 record (JSON), 5.. id, token pairs
-- RETURNS: the ids that are no longer this worker's
-- INVARIANT: only a running job whose token matches is renewed.
-- INCLUDES: now
local now = now_ms()
redis.call('ZREM', KEYS[3], ARGV[1]) -- a first write that memory pressure cannot refuse
redis.call('ZADD', KEYS[3], now, ARGV[1])
redis.call('HSET', KEYS[4], 'record', ARGV[4], 'seen', now)
redis.call('PEXPIRE', KEYS[4], ARGV[3])
local lost = {}
for i = 5, #ARGV, 2 do
  local job = redis.call('HMGET', KEYS[1] .. 'job:' .. ARGV[i], 'status', 'token')
  if job[1] == 'running' and job[2] == ARGV[i + 1] then
    redis.call('ZADD', KEYS[2], 'XX', now + ARGV[2], ARGV[i])
  else
    lost[#lost + 1] = ARGV[i]
  end
end
return lost
