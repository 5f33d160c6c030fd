-- Puts a job that is not running back in the queue: with its first score and its level, at once or after `delay_ms`.
local function requeue(p, id, now, delay_ms)
  redis.call('ZREM', p .. 'leases', id)
  local key = p .. 'job:' .. id
  local job = redis.call('HMGET', key, 'class', 'level', 'score', 'aged', 'age', 'deadline')
  redis.call('HSET', key, 'status', 'queued')
  if tonumber(job[5]) > 0 then redis.call('ZADD', p .. 'aging', math.min(now + job[5], job[6]), id) end
  if delay_ms > 0 then
    redis.call('ZADD', p .. 'delayed', now + delay_ms, id)
    redis.call('ZADD', p .. 'marker', 0, 'work') -- a waiting worker learns when it is due
  else
    place(p, id, job)
  end
end
