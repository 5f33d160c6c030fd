-- Where a job is placed best. `spare`: worker -> ease, the free share of its slots (or of its KV cache, if less) times
-- its speed; who has no room is not in it. A job is left for a moment to a worker that is clearly better placed.
local MARGIN, AFFINITY, SPREAD_MS = 0.25, 0.5, 20

local function is_live(p, worker, now, lease_ms)
  local seen = redis.call('ZSCORE', p .. 'workers', worker)
  return seen and now - seen <= lease_ms
end

local function ease(ask)
  local share = ask.free / ask.slots
  if ask.kv >= 0 and ask.kv_total > 0 then share = math.min(share, ask.kv / ask.kv_total) end
  return ask.speed * share
end

-- The other live worker with the most room, and its ease.
local function roomiest(p, ask, now)
  local top = redis.call('ZREVRANGE', p .. 'spare', 0, 1, 'WITHSCORES')
  for i = 1, #top, 2 do
    if top[i] ~= ask.worker then
      if is_live(p, top[i], now, ask.lease_ms) then return top[i], tonumber(top[i + 1]) end
      redis.call('ZREM', p .. 'spare', top[i])
    end
  end
end

-- Who should have a job that has waited so long, and for how many ms more; nothing if the asker may take it. `owner`
-- has the job's prefix, which is worth half its slots being free.
local function better_placed(p, ask, owner, waited)
  local mine, left = ease(ask), ask.patience_ms - waited
  if owner == ask.worker then
    mine = mine + AFFINITY
  elseif owner and left > 0 and AFFINITY + (redis.call('ZSCORE', p .. 'spare', owner) or 0) >= mine then
    return owner, left
  end
  if ask.rival and waited < SPREAD_MS and ask.rival_ease > mine + MARGIN then return ask.rival, SPREAD_MS - waited end
end

-- Only at home, where a worker asks first: elsewhere it would seem free long after it is not.
local function note_room(p, ask)
  if ask.free > 0 and ask.home == '0' then redis.call('ZADD', p .. 'spare', ease(ask), ask.worker) end -- claim has removed it
  if ask.takes ~= '1111' then redis.call('SET', p .. 'takes:' .. ask.worker, ask.takes, 'PX', 3600000) end
end

local function would_take(p, worker, class)
  local mask = redis.call('GET', p .. 'takes:' .. worker)
  return not mask or string.sub(mask, class + 1, class + 1) == '1'
end
