-- Puts a job back in the queue that ran, is held, or is new: with its first score and its level, at once or after `delay_ms`.
local function requeue(p, id, now, delay_ms)
  redis.call('ZREM', p .. 'leases', id)
  local key = p .. 'job:' .. id
  local job = redis.call('HMGET', key, 'class', 'level', 'score', 'aged', 'age', 'deadline', 'status', 'cost')
  local cost = job[8] or 0
  if job[7] ~= 'queued' then count_waiting(p, job[1], 1, cost) end
  if job[7] == 'running' then redis.call('HINCRBY', p .. 'stats', 'returned_ms:' .. job[1], cost) end
  redis.call('HSET', key, 'status', 'queued')
  if tonumber(job[5]) > 0 then redis.call('ZADD', p .. 'aging', math.min(now + job[5], job[6]), id) end
  if delay_ms > 0 then
    redis.call('ZADD', p .. 'delayed', now + delay_ms, id)
    redis.call('ZADD', p .. 'marker', 0, 'work') -- a waiting worker learns when it is due
  else
    place(p, id, job)
  end
end
