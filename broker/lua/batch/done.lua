-- Ends a slice whose part is safely stored; the next slice may run, or, after the last, the batch is put together.
-- KEYS: 1 batch, 2 todo, 3 unit
-- ARGV: 1 name of the unit, 2 token, 3 completed, 4 failed, 5 lines that expired, 6 grace_ms
-- RETURNS: the units to send, or false if the token is stale
-- INVARIANT: a slice is done once, and its counts with it; the part named by this token is the one that counts.
-- INCLUDES: now, unit
if redis.call('HGET', KEYS[3], 'token') ~= ARGV[2] or not redis.call('ZSCORE', KEYS[2], ARGV[1]) then return false end
local now = now_ms()
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('HSET', KEYS[3], 'part', ARGV[2], 'until', 0)
count(KEYS[1], KEYS[3], ARGV[3], ARGV[4])
if tonumber(ARGV[5]) > 0 then redis.call('HSET', KEYS[1], 'overdue', 1) end
local done = redis.call('HINCRBY', KEYS[1], 'done', 1)
local batch = redis.call('HMGET', KEYS[1], 'status', 'sent', 'slices')
if batch[1] == 'in_progress' and tonumber(batch[2]) < tonumber(batch[3]) then
  redis.call('HINCRBY', KEYS[1], 'sent', 1)
  return { sent(KEYS[1], KEYS[2], batch[2], now, ARGV[6]) }
end
if done < tonumber(batch[2]) then return {} end
if batch[1] == 'in_progress' then redis.call('HSET', KEYS[1], 'status', 'finalizing', 'finalizing_at', now) end
return { sent(KEYS[1], KEYS[2], 'finalize', now, ARGV[6]) }
