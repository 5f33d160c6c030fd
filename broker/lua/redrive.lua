-- Submits a dead letter's request again, as a new job; the dead one keeps its end and names its successor.
-- KEYS: 1 prefix, 2 dead job, 3 its payload, 4 dead, 5 new job, 6 new payload, 7 deadlines, 8 stats, 9 index
-- ARGV: 1 dead id, 2 new id, 3 deadline_ms, 4-7 ages (ms at level 0-3)
-- RETURNS: 1 queued, 0 it is not a dead letter, or its request is gone
-- INVARIANT: a dead letter is re-driven once. Nobody waits for the new job, and it begins where the old one ended: what is of
-- a connection, a successor or a trace is not copied.
-- INCLUDES: now, place, requeue
local body = redis.call('GET', KEYS[3])
if not body or not redis.call('ZSCORE', KEYS[4], ARGV[1]) then return 0 end
local names = { 'class', 'endpoint', 'stream', 'tenant', 'cost', 'ptok', 'otok', 'need', 'pfx', 'tool', 'slots', 'retain', 'meta',
  'notify', 'cap', 'fall', 'route' }
local old, now = redis.call('HMGET', KEYS[2], unpack(names)), now_ms()
if not old[1] then return 0 end
local class = old[1]
local fields = { 'created', now, 'deadline', now + ARGV[3], 'score', now, 'token', 0, 'seq', 0,
  'attempts', 0, 'errors', 0, 'deaths', 0, 'attached', 0, 'reply', '', 'level', class, 'age', ARGV[4 + class] }
for i, name in ipairs(names) do
  if old[i] then
    fields[#fields + 1] = name
    fields[#fields + 1] = old[i]
  end
end
redis.call('SET', KEYS[6], body)
redis.call('HSET', KEYS[5], unpack(fields))
redis.call('ZADD', KEYS[7], now + ARGV[3], ARGV[2])
if redis.call('ZSCORE', KEYS[9], ARGV[1]) then redis.call('ZADD', KEYS[9], now, ARGV[2]) end
redis.call('ZREM', KEYS[4], ARGV[1])
redis.call('HSET', KEYS[2], 'redriven_as', ARGV[2])
redis.call('DEL', KEYS[3])
redis.call('HINCRBY', KEYS[8], 'enqueued:' .. class, 1)
requeue(KEYS[1], ARGV[2], now, 0)
return 1
