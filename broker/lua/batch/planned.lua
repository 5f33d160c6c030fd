-- Ends the planning: the batch's slices are known, the first of them may run.
-- KEYS: 1 batch, 2 todo, 3 plan unit
-- ARGV: 1 token, 2 lines, 3 slices, 4 slices at a time, 5 grace_ms
-- RETURNS: the units to send, or false if the token is stale
-- INVARIANT: a batch is planned once.
-- INCLUDES: now, unit
if redis.call('HGET', KEYS[3], 'token') ~= ARGV[1] or not redis.call('ZSCORE', KEYS[2], 'plan') then return false end
local now = now_ms()
redis.call('ZREM', KEYS[2], 'plan')
redis.call('HSET', KEYS[1], 'total', ARGV[2], 'slices', ARGV[3])
if redis.call('HGET', KEYS[1], 'status') ~= 'validating' then -- cancelled meanwhile: nothing will be fed
  return { sent(KEYS[1], KEYS[2], 'finalize', now, ARGV[5]) }
end
local first = math.min(ARGV[3], ARGV[4])
redis.call('HSET', KEYS[1], 'status', 'in_progress', 'in_progress_at', now, 'sent', first)
local units = {}
for unit = 0, first - 1 do units[#units + 1] = sent(KEYS[1], KEYS[2], unit, now, ARGV[5]) end
return units
