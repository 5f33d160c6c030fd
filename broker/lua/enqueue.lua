-- Accepts one job: into its class's ready set, or held back until it is fed.
-- KEYS: 1 job, 2 payload, 3-6 ready:0..3, 7 delayed, 8 deadlines, 9 aging, 10 index, 11 fair, 12 stats, 13 prefix
-- ARGV: 1 id, 2 class, 3 cost_ms, 4 sjf_weight, 5 priority_ms, 6 weight, 7 deadline_ms, 8 hold_ms, 9 payload,
--       10 index_cap, 11 reply, 12 age_ms (0: never promoted), 13.. name, value pairs of the job's hash
-- RETURNS: {created 0|1, status, jobs that are claimed before it, or -1}
-- INVARIANT: an id is accepted once; a repeat only renews where to reply.
-- INCLUDES: now, place
local known = redis.call('HGET', KEYS[1], 'status')
if known then
  if ARGV[11] ~= '' then redis.call('HSET', KEYS[1], 'reply', ARGV[11]) end
  return { 0, known, -1 }
end
local now = now_ms()
local class = tonumber(ARGV[2])
local cost = tonumber(ARGV[3])
local weight = tonumber(ARGV[6])
local start = now
if weight > 0 then start = math.max(now, tonumber(redis.call('GET', KEYS[11]) or 0)) end
local score = start + tonumber(ARGV[4]) * cost + tonumber(ARGV[5])
local deadline = now + tonumber(ARGV[7])

redis.call('SET', KEYS[2], ARGV[9]) -- first, for it is refused when memory is full: nothing is accepted then
local finish = math.ceil(start + cost / math.max(weight, 1e-9))
if weight > 0 and finish > now then redis.call('SET', KEYS[11], finish, 'PX', finish - now) end
redis.call('HSET', KEYS[1], 'status', 'queued', 'class', class, 'age', ARGV[12], 'score', score, 'created', now,
  'deadline', deadline, unpack(ARGV, 13))
redis.call('HINCRBY', KEYS[12], 'enqueued:' .. class, 1)
local cap = tonumber(ARGV[10])
if cap > 0 then
  redis.call('ZADD', KEYS[10], now, ARGV[1])
  redis.call('ZREMRANGEBYRANK', KEYS[10], 0, -(cap + 1))
end
if tonumber(ARGV[12]) > 0 then -- in one set of the two: 144 bytes a job
  redis.call('ZADD', KEYS[9], math.min(now + ARGV[12], deadline), ARGV[1])
else
  redis.call('ZADD', KEYS[8], deadline, ARGV[1])
end
local hold = tonumber(ARGV[8])
if hold > 0 then
  redis.call('ZADD', KEYS[7], now + hold, ARGV[1])
else
  place(KEYS[13], ARGV[1], { ARGV[2], ARGV[2], score })
end
local ahead = redis.call('ZRANK', KEYS[3 + class], ARGV[1]) -- among equal scores too
  or redis.call('ZCOUNT', KEYS[3 + class], '-inf', string.format('%.17g', score))
for higher = 0, class - 1 do ahead = ahead + redis.call('ZCARD', KEYS[3 + higher]) end
return { 1, 'queued', ahead }
