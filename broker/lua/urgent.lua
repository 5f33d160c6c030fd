-- How long the first waiting job of a class has waited: what a full worker asks before it stops batch work for P0.
-- KEYS: 1 prefix
-- ARGV: 1 class
-- RETURNS: ms, or -1 if none waits, or the queue is paused
-- INVARIANT: reads only.
-- INCLUDES: now
if redis.call('HGET', KEYS[1] .. 'stats', 'paused') == '1' then return -1 end
local id = redis.call('ZRANGE', KEYS[1] .. 'ready:' .. ARGV[1], 0, 0)[1]
local created = id and redis.call('HGET', KEYS[1] .. 'job:' .. id, 'created')
return created and now_ms() - created or -1
