-- Puts a queued job where claim finds it: into its class's ready set by score, or, once promoted, into the aged set of
-- its level by the time of its promotion. `job`: class, level (false: the class), score, aged (time of promotion, ms).
local function place(p, id, job)
  if job[2] and job[2] < job[1] then
    redis.call('ZADD', p .. 'aged:' .. job[2], job[4], id)
  else
    redis.call('ZADD', p .. 'ready:' .. job[1], job[3], id)
  end
  redis.call('ZADD', p .. 'marker', 0, 'work')
  if job[1] == '0' then redis.call('ZADD', p .. 'urgent', 0, 'work') end
end

-- As `place`, for a job that is known by its id only; nothing for one that is gone.
local function place_stored(p, id)
  local job = redis.call('HMGET', p .. 'job:' .. id, 'class', 'level', 'score', 'aged')
  if job[1] then place(p, id, job) end
end
