-- Keeps a unit's lease, and shows how far the unit is. A lease of 0 ms gives it back.
-- KEYS: 1 batch, 2 todo, 3 unit
-- ARGV: 1 name of the unit, 2 token, 3 lease_ms, 4 completed, 5 failed
-- RETURNS: feed|cancel|expire, or false if the unit is no longer this task's
-- INVARIANT: a stale token changes nothing.
-- INCLUDES: now, unit
if redis.call('HGET', KEYS[3], 'token') ~= ARGV[2] or not redis.call('ZSCORE', KEYS[2], ARGV[1]) then return false end
local now = now_ms()
redis.call('ZREM', KEYS[2], ARGV[1]) -- a first write that memory pressure cannot refuse
sent(KEYS[1], KEYS[2], ARGV[1], now, ARGV[3])
redis.call('HSET', KEYS[3], 'until', now + ARGV[3])
count(KEYS[1], KEYS[3], ARGV[4], ARGV[5])
local batch = redis.call('HMGET', KEYS[1], 'status', 'expires_at')
return mode_of(batch[1], batch[2], now)
