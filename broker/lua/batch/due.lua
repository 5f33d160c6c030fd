-- Finds the units whose message or whose task seems lost, and puts off when they are looked at next.
-- KEYS: 1 batch, 2 todo
-- ARGV: 1 limit, 2 grace_ms, 3 longest grace_ms
-- RETURNS: {status or false if the batch is gone, unit, ...}
-- INVARIANT: bounded by limit; the grace doubles each time, so that messages that only wait do not pile up.
-- INCLUDES: now, unit
local status = redis.call('HGET', KEYS[1], 'status')
if not status then return { false } end
local now, answer = now_ms(), { status }
for _, unit in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, ARGV[1])) do
  local key = KEYS[1] .. ':unit:' .. unit
  local resent = redis.call('HINCRBY', key, 'resent', 1)
  redis.call('PEXPIRE', key, redis.call('PTTL', KEYS[1]))
  answer[#answer + 1] = sent(KEYS[1], KEYS[2], unit, now, math.min(ARGV[3], ARGV[2] * 2 ^ (resent - 1)))
end
return answer
