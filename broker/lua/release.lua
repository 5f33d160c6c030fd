-- Gives a lease back: after an engine error (counted), or uncounted because the worker drains or the engine is busy.
-- KEYS: 1 prefix, 2 job, 3 stats
-- ARGV: 1 id, 2 token, 3 reason (error|busy|drain|preempt), 4 delay_ms, 5 max_errors, 6 error (JSON), 7 keep_ms, 8-12 rule of the breaker
-- RETURNS: 1 will be tried again, 2 it was the last try, 0 the token is stale
-- INVARIANT: the score stays; an answer whose first byte a connection has seen is not begun again, unless that asked for it (attached 2).
-- INCLUDES: now, tell, place, cap, settle, note, requeue, bury, breaker
local job = redis.call('HMGET', KEYS[2], unpack(SETTLE_FIELDS))
if job[1] ~= 'running' or job[3] ~= ARGV[2] then return 0 end
local more = redis.call('HMGET', KEYS[2], 'errors', 'attached', 'why')
local now = now_ms()
local errors = (tonumber(more[1]) or 0) + (ARGV[3] == 'error' and 1 or 0)

redis.call('ZREM', KEYS[1] .. 'leases', ARGV[1])
redis.call('HSET', KEYS[2], 'errors', errors)
note_attempt(KEYS[1], ARGV[1], job, more[3], ARGV[3], ARGV[6], now)
if ARGV[3] == 'error' then
  engine_failed(KEYS[1], job, more[1] and more[1] ~= '0', rule_of(ARGV[8], ARGV[9], ARGV[10], ARGV[11], ARGV[12]), now)
end
if more[2] == '1' and tonumber(job[4]) > 0 then
  settle(KEYS[1], ARGV[1], job, 'failed', now, ARGV[6], 0)
  return 2
end
if errors > tonumber(ARGV[5]) then
  bury(KEYS[1], ARGV[1], job, now, ARGV[6], tonumber(ARGV[7]))
  return 2
end
redis.call('HINCRBY', KEYS[3], 'retried:' .. ARGV[3], 1)
if ARGV[3] == 'preempt' then redis.call('HINCRBY', KEYS[2], 'preempts', 1) end
requeue(KEYS[1], ARGV[1], now, tonumber(ARGV[4]))
free_cap(KEYS[1], job[10], job[11], now)
tell(KEYS[1], ARGV[1], job[5], 'retry ' .. job[3] .. ' ' .. job[4] .. ' 0 queued', '')
return 1
