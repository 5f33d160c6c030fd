-- Leases one unit of a batch to a task.
-- KEYS: 1 batch, 2 todo, 3 unit
-- ARGV: 1 name of the unit, 2 lease_ms
-- RETURNS: {token, feed|cancel|expire, ms until the batch expires, start, end, first, lines, duplicates};
--          {} if the unit is done, unknown, or leased to another task
-- INVARIANT: a unit is leased to one task at a time; its token is higher than any it had before.
-- INCLUDES: now, unit
local now = now_ms()
local batch = redis.call('HMGET', KEYS[1], 'status', 'expires_at')
if not batch[1] or not redis.call('ZSCORE', KEYS[2], ARGV[1]) then return {} end
if tonumber(redis.call('HGET', KEYS[3], 'until') or 0) > now then return {} end
local token = redis.call('HINCRBY', KEYS[3], 'token', 1)
redis.call('HSET', KEYS[3], 'until', now + ARGV[2], 'resent', 0)
redis.call('PEXPIRE', KEYS[3], redis.call('PTTL', KEYS[1]))
redis.call('ZADD', KEYS[2], now + ARGV[2], ARGV[1])
local cut = redis.call('HMGET', KEYS[3], 'start', 'end', 'first', 'lines', 'duplicates')
return { token, mode_of(batch[1], batch[2], now), batch[2] - now, unpack(cut) }
