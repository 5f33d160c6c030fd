-- The order inside a level: promoted jobs and those of the class itself, the former at most a share of the claims, and of
-- the predicted seconds, while both wait. Deficit counting: `credit` grows by the share with each such choice; a promoted
-- job costs 100, or more in proportion if it is predicted to run longer than the mean of the level's own jobs.
-- `others`: 1 if jobs wait of a class that the asker does not take; they are not read.
local function read_level(p, level, n, ask)
  local queue = { p = p, level = level, i = 1, j = 1, ready = {}, aged = {}, others = 0 }
  if takes(ask, level) then
    queue.ready = redis.call('ZRANGE', p .. 'ready:' .. level, 0, n - 1)
  else
    queue.others = redis.call('EXISTS', p .. 'ready:' .. level)
  end
  if level < 3 then queue.aged = redis.call('ZRANGE', p .. 'aged:' .. level, 0, n - 1) end
  queue.cut = #queue.ready == n or #queue.aged == n
  return queue
end

-- Whether so many jobs wait that all workers will be full anyhow.
local function is_crowded(queue, slots)
  return queue.cut and redis.call('ZCARD', queue.p .. 'ready:' .. queue.level) >= 4 * slots
end

-- The next job, the set it is in, and whether it is a promoted one that goes before others.
local function pick(queue, share)
  local ready, aged = queue.ready[queue.i], queue.aged[queue.j]
  local contested = ready and aged
  if contested then
    local field = 'credit:' .. queue.level
    local credit = redis.call('HINCRBY', queue.p .. 'stats', field, share)
    if credit > 300 then redis.call('HINCRBY', queue.p .. 'stats', field, -share) end -- none of them fits
    if credit < 100 then aged = nil end
  end
  if aged then
    queue.j = queue.j + 1
    return aged, queue.p .. 'aged:' .. queue.level, contested
  end
  if ready then
    queue.i = queue.i + 1
    return ready, queue.p .. 'ready:' .. queue.level
  end
end

local function charge(p, level, job)
  local own = redis.call('HMGET', p .. 'stats', 'claimed:' .. level, 'claimed_ms:' .. level)
  local mean = (tonumber(own[2]) or 0) / math.max(1, tonumber(own[1]) or 0)
  local times = mean > 0 and (tonumber(job.cost) or 0) / mean or 1
  redis.call('HINCRBY', p .. 'stats', 'credit:' .. level, -math.floor(100 * math.max(1, times)))
end
