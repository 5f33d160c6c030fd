-- Who holds which prompt prefix in its engine's cache. `chain`: hashes of a job's prefix blocks, shortest prefix first,
-- joined by commas; equal hashes mean equal prefixes. The newest PREFIX_CAP are known.
local PREFIX_CAP = 100000

local function blocks(chain)
  local found = {}
  for hash in string.gmatch(chain, '[^,]+') do found[#found + 1] = hash end
  return found
end

-- The live worker that served the longest known prefix last, and how many of its blocks; or nil.
local function holder(p, chain, now, lease_ms)
  local hashes = blocks(chain)
  local owners = redis.call('HMGET', p .. 'prefixes', unpack(hashes))
  for i = #hashes, 1, -1 do
    if owners[i] and is_live(p, owners[i], now, lease_ms) then return owners[i], i end
  end
end

local function remember(p, chain, worker, now)
  for _, hash in ipairs(blocks(chain)) do
    redis.call('HSET', p .. 'prefixes', hash, worker)
    redis.call('ZADD', p .. 'prefix_at', now, hash)
  end
  if redis.call('ZCARD', p .. 'prefix_at') > PREFIX_CAP then
    local old = redis.call('ZPOPMIN', p .. 'prefix_at', 16)
    for i = 1, #old, 2 do redis.call('HDEL', p .. 'prefixes', old[i]) end
  end
end
