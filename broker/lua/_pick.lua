-- The order inside a level: promoted jobs and those of the class itself, the former at most a share of the claims while
-- both wait (deficit counting: `credit` grows by the share with each such claim, and one claim costs 100).
local function read_level(p, level, n)
  local queue = { p = p, level = level, i = 1, j = 1, aged = {} }
  queue.ready = redis.call('ZRANGE', p .. 'ready:' .. level, 0, n - 1)
  if level < 3 then queue.aged = redis.call('ZRANGE', p .. 'aged:' .. level, 0, n - 1) end
  queue.cut = #queue.ready == n or #queue.aged == n
  return queue
end

local function pick(queue, share)
  local ready, aged = queue.ready[queue.i], queue.aged[queue.j]
  local field = 'credit:' .. queue.level
  if ready and aged then
    local credit = redis.call('HINCRBY', queue.p .. 'stats', field, share)
    if credit < 100 then aged = nil else redis.call('HINCRBY', queue.p .. 'stats', field, -100) end
  end
  if aged then
    queue.j = queue.j + 1
    return aged, queue.p .. 'aged:' .. queue.level
  end
  if ready then
    queue.i = queue.i + 1
    return ready, queue.p .. 'ready:' .. queue.level
  end
end
