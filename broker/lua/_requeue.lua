-- Puts a job that is not running back where claim finds it: with its first score, at once or after `delay_ms`.
local function requeue(p, id, class, score, now, delay_ms)
  redis.call('ZREM', p .. 'leases', id)
  redis.call('HSET', p .. 'job:' .. id, 'status', 'queued')
  if delay_ms > 0 then
    redis.call('ZADD', p .. 'delayed', now + delay_ms, id)
  else
    redis.call('ZADD', p .. 'ready:' .. class, score, id)
    redis.call('ZADD', p .. 'marker', 0, 'work')
  end
end
