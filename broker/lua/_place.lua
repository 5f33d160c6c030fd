-- Has a worker look, also a full one if it may have to stop batch work.
local function wake(p, class)
  redis.call('ZADD', p .. 'marker', 0, 'work')
  if class == '0' then redis.call('ZADD', p .. 'urgent', 0, 'work') end
end

-- Puts a queued job where claim finds it: into its class's ready set by score, or, once promoted, into the aged set of
-- its level by the time of its promotion. `job`: class, level (false: the class), score, aged (time of promotion, ms).
local function place(p, id, job)
  if job[2] and job[2] < job[1] then
    redis.call('ZADD', p .. 'aged:' .. job[2], job[4], id)
  else
    redis.call('ZADD', p .. 'ready:' .. job[1], job[3], id)
  end
  wake(p, job[1])
end

-- As `place`, for a job that is known by its id only; nothing for one that has ended.
local function place_stored(p, id)
  local job = redis.call('HMGET', p .. 'job:' .. id, 'class', 'level', 'score', 'aged', 'status')
  if job[5] == 'queued' then place(p, id, job) end
end

-- What waits, by class: every way into the queue adds to it, every way out takes away. In the pool's stats: `queued` jobs,
-- and the ms that they are predicted to run, `queued_ms`.
local function count_waiting(p, class, jobs, ms)
  redis.call('HINCRBY', p .. 'stats', 'queued:' .. class, jobs)
  if ms ~= 0 then redis.call('HINCRBY', p .. 'stats', 'queued_ms:' .. class, ms) end
end
