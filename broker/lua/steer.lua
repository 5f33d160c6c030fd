-- Notes what an operator wishes of one worker, and calls the worker, whose next heartbeat reads it.
-- KEYS: 1 worker, 2 control
-- ARGV: 1 worker, 2 wish (pause|drain), or '' to take it back
-- RETURNS: 1, or 0 if there is no such worker
-- INVARIANT: nothing is noted of a worker that is not there.
-- INCLUDES: now
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HDEL', KEYS[1], 'wish', 'wished') -- a first write that memory pressure cannot refuse
if ARGV[2] ~= '' then redis.call('HSET', KEYS[1], 'wish', ARGV[2], 'wished', now_ms()) end
redis.call('PUBLISH', KEYS[2], 'call ' .. ARGV[1] .. ' 0')
return 1
