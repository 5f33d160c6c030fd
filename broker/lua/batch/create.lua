-- Accepts one batch; its first unit of work is the plan.
-- KEYS: 1 batch, 2 todo
-- ARGV: 1 window_ms, 2 ttl_ms, 3 grace_ms, 4.. name, value pairs of the batch's hash
-- RETURNS: 1 created, 0 it was there already
-- INVARIANT: an id is accepted once.
-- INCLUDES: now, unit
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
local now = now_ms()
redis.call('HSET', KEYS[1], 'status', 'validating', 'created_at', now, 'expires_at', now + ARGV[1], 'total', 0,
  'completed', 0, 'failed', 0, 'slices', 0, 'sent', 0, 'done', 0, unpack(ARGV, 4))
redis.call('PEXPIRE', KEYS[1], ARGV[1] + ARGV[2])
sent(KEYS[1], KEYS[2], 'plan', now, ARGV[3])
return 1
