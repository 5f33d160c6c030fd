-- Aging: jobs that waited past their threshold go up one level. `ages`: ms a job waits at each level, from 0 to 3.
-- `aging` is by the next promotion or the deadline, whichever comes first; a job that is not in it is in `deadlines`.
-- A promoted job keeps its class for accounting, and a place in the aged set of its level by the time it got there.
local function promote(p, now, ages, limit)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', p .. 'aging', '-inf', now, 'LIMIT', 0, limit)) do
    redis.call('ZREM', p .. 'aging', id)
    local key = p .. 'job:' .. id
    local job = redis.call('HMGET', key, 'status', 'class', 'level', 'deadline')
    if job[1] == 'queued' and tonumber(job[4]) <= now then
      redis.call('ZADD', p .. 'deadlines', job[4], id)
    elseif job[1] == 'queued' then
      local at = job[3] or job[2]
      local level = at - 1
      local waiting = redis.call('ZREM', p .. 'ready:' .. job[2], id) + redis.call('ZREM', p .. 'aged:' .. at, id)
      redis.call('HSET', key, 'level', level, 'aged', now, 'age', ages[level + 1])
      redis.call('HINCRBY', p .. 'stats', 'promoted:' .. job[2], 1)
      if level > 0 then
        redis.call('ZADD', p .. 'aging', math.min(now + ages[level + 1], job[4]), id)
      else
        redis.call('ZADD', p .. 'deadlines', job[4], id)
      end
      if waiting > 0 then place(p, id, { job[2], tostring(level), 0, now }) end
    end
  end
end
