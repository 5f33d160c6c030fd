-- Keeps what finished jobs teach: their outcomes, and the last outputs of each template and of the pool as a whole.
-- KEYS: 1 learn, 2 pasts, 3 past_at
-- ARGV: 1 most outcomes, 2 most pasts, 3 ttl_ms of a past, 4 outputs of one past,
--       5.. key, output tokens, outcome (JSON), for each job
-- RETURNS: how many pasts are kept
-- INVARIANT: bounded: the least lately used pasts go first. Nothing is kept when memory is full.
-- INCLUDES: now
local now, most, keep, fresh = now_ms(), tonumber(ARGV[2]), tonumber(ARGV[4]), {}

local function add(key, tokens)
  fresh[key] = fresh[key] or {}
  table.insert(fresh[key], tokens)
end

-- Newest first, separated by commas.
local function merged(key, added)
  local outputs = {}
  for i = #added, math.max(1, #added - keep + 1), -1 do outputs[#outputs + 1] = added[i] end
  local past = #outputs < keep and redis.call('HGET', KEYS[2], key)
  for output in string.gmatch(past or '', '%d+') do
    if #outputs >= keep then break end
    outputs[#outputs + 1] = output
  end
  return table.concat(outputs, ',')
end

for i = 5, #ARGV, 3 do
  redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'o', ARGV[i + 2]) -- first, for it is refused when memory is full
  add(ARGV[i], ARGV[i + 1])
  add('*', ARGV[i + 1])
end
for key, added in pairs(fresh) do
  redis.call('HSET', KEYS[2], key, merged(key, added))
  redis.call('ZADD', KEYS[3], now, key)
end

local over = redis.call('ZCARD', KEYS[3]) - most
local gone = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now - ARGV[3], 'LIMIT', 0, 64)
if over > 0 then
  for _, key in ipairs(redis.call('ZRANGE', KEYS[3], 0, math.min(over, 512) - 1)) do gone[#gone + 1] = key end
end
if #gone > 0 then
  redis.call('HDEL', KEYS[2], unpack(gone))
  redis.call('ZREM', KEYS[3], unpack(gone))
end
for i = 1, 3 do redis.call('PEXPIRE', KEYS[i], ARGV[3]) end
return redis.call('ZCARD', KEYS[3])
