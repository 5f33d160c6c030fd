-- A minute of what one key or one tenant has taken, in slots: a hash of counts, and their sums.
local SLOT_MS, SLOTS = 250, 241 -- a minute, and the slot in which it began
local now = now_ms()
local slot = math.floor(now / SLOT_MS)

-- What is taken now: `r` requests, `t` tokens; `gone`: fields of the slots that have come back.
local function read(key)
  local head = redis.call('HMGET', key, 'at', 'r', 't', 'rl', 'tl')
  local w = { key = key, at = tonumber(head[1] or slot), r = tonumber(head[2] or 0), t = tonumber(head[3] or 0),
    rl = tonumber(head[4] or 0), tl = tonumber(head[5] or 0), gone = {} }
  local names = {}
  for s = w.at, slot - SLOTS do names[#names + 1], names[#names + 2] = 'r' .. s, 't' .. s end
  if #names == 0 then return w end
  w.at = slot - SLOTS + 1
  for i, n in ipairs(redis.call('HMGET', key, unpack(names))) do
    local kind = i % 2 == 1 and 'r' or 't'
    if n then w[kind], w.gone[#w.gone + 1] = w[kind] - n, names[i] end
  end
  return w
end

local function write(w, kind, n, at)
  at = math.max(at, w.at) -- a clock that went back must not write where nobody looks again
  if #w.gone > 0 then redis.call('HDEL', w.key, unpack(w.gone)) end
  w.gone, w[kind], w[kind .. 'l'] = {}, w[kind] + n, math.max(w[kind .. 'l'], at)
  redis.call('HINCRBY', w.key, kind .. at, n)
  redis.call('HSET', w.key, 'at', w.at, kind, w[kind], kind .. 'l', w[kind .. 'l'])
  redis.call('PEXPIRE', w.key, (SLOTS + 3) * SLOT_MS)
end

local function back_ms(w, kind) return w[kind] > 0 and (w[kind .. 'l'] + SLOTS) * SLOT_MS - now or 0 end

local function room_ms(w, kind, missing) -- until so many have come back
  local names = {}
  for s = w.at, slot do names[#names + 1] = kind .. s end
  for i, n in ipairs(redis.call('HMGET', w.key, unpack(names))) do
    missing = missing - (n or 0)
    if missing <= 0 then return (w.at + i - 1 + SLOTS) * SLOT_MS - now end
  end
  return SLOTS * SLOT_MS
end
