-- Lets jobs whose delay or hold has passed back to where claim finds them; returns how many were due.
local function revive(p, now, limit)
  local due = redis.call('ZRANGEBYSCORE', p .. 'delayed', '-inf', now, 'LIMIT', 0, limit)
  for _, id in ipairs(due) do
    redis.call('ZREM', p .. 'delayed', id)
    place_stored(p, id)
  end
  return #due
end
