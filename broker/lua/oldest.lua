-- How long jobs have waited that will be claimed next, by class: the first of each class and the first promoted ones of each level.
-- KEYS: 1 prefix, 2-5 ready:0..3, 6 aged:0, 7 aged:1, 8 aged:2
-- ARGV: 1 most jobs of each set
-- RETURNS: ms for each class, or -1 if none of it waits
-- INVARIANT: it writes nothing.
-- INCLUDES: now
local now, oldest = now_ms(), { -1, -1, -1, -1 }
for _, set in ipairs({ KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8] }) do
  for _, id in ipairs(redis.call('ZRANGE', set, 0, ARGV[1] - 1)) do
    local job = redis.call('HMGET', KEYS[1] .. 'job:' .. id, 'class', 'created')
    local class = tonumber(job[1])
    if class then oldest[class + 1] = math.max(oldest[class + 1], now - job[2]) end
  end
end
return oldest
