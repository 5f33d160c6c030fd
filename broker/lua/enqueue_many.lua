-- Accepts jobs that differ only in their request and forecast, each as `enqueue` would.
-- KEYS: 1 prefix, 2 ready of the class, 3 delayed, 4 deadlines, 5 aging, 6 index, 7 fair, 8 stats
-- ARGV: 1 class, 2 sjf_weight, 3 priority_ms, 4 weight, 5 deadline_ms, 6 hold_ms, 7 index_cap, 8 reply,
--       9 number of words that follow and that all jobs have in their hash (name, value pairs),
--       10.. those, then for each job: id, payload, cost_ms, age_ms, ptok, otok, need, pfx ('' or 0: not stored)
-- RETURNS: for each job its status if the id was known, else false
-- INVARIANT: an id is accepted once; a repeat only renews where to reply.
-- INCLUDES: now, place
local OPTIONAL = { 'cost', false, 'ptok', 'otok', 'need', 'pfx' }
local p, now, class = KEYS[1], now_ms(), ARGV[1]
local hold, weight, cap = tonumber(ARGV[6]), tonumber(ARGV[4]), tonumber(ARGV[7])
-- numbers become text once, not at every command that takes them
local created, deadline = string.format('%d', now), string.format('%d', now + ARGV[5])
local finish = weight > 0 and tonumber(redis.call('GET', KEYS[7]) or 0) or 0
local first = 10 + ARGV[9]
local hash = { 'status', 'queued', 'class', class, 'created', created, 'deadline', deadline, 'score', 0, 'age', 0,
  unpack(ARGV, 10, first - 1) }
local SCORE, AGE, COMMON = 10, 12, #hash
local held = hold > 0 and string.format('%d', now + hold)
local answers, ready, deadlines, aging, index, last = {}, {}, {}, {}, {}, nil

local function add(set, score, id)
  set[#set + 1] = score
  set[#set + 1] = id
end

-- The rest of the hash, after what all have in common; returns how many words it has then.
local function fill(i, score)
  hash[SCORE], hash[AGE] = score, ARGV[i + 3]
  local n = COMMON
  for at, name in ipairs(OPTIONAL) do
    local value = ARGV[i + 1 + at]
    if name and value ~= '0' and value ~= '' then
      hash[n + 1], hash[n + 2] = name, value
      n = n + 2
    end
  end
  return n
end

local function accept(i)
  local id, cost, start = ARGV[i], tonumber(ARGV[i + 2]), now
  redis.call('SET', p .. 'in:' .. id, ARGV[i + 1]) -- first, for it is refused when memory is full
  if weight > 0 then
    start = math.max(now, finish)
    finish = math.ceil(start + cost / weight)
  end
  local score = string.format('%.17g', start + ARGV[2] * cost + ARGV[3])
  redis.call('HSET', p .. 'job:' .. id, unpack(hash, 1, fill(i, score)))
  add(ready, held or score, id)
  if ARGV[i + 3] ~= '0' then
    add(aging, math.min(now + ARGV[i + 3], deadline), id)
  else
    add(deadlines, deadline, id)
  end
  if cap > 0 then add(index, created, id) end
  last = { id, score }
end

for i = first, #ARGV, 8 do
  local known = redis.call('HGET', p .. 'job:' .. ARGV[i], 'status')
  answers[#answers + 1] = known
  if not known then
    accept(i)
  elseif ARGV[8] ~= '' then
    redis.call('HSET', p .. 'job:' .. ARGV[i], 'reply', ARGV[8])
  end
end
if not last then return answers end
redis.call('ZADD', hold > 0 and KEYS[3] or KEYS[2], unpack(ready))
if #deadlines > 0 then redis.call('ZADD', KEYS[4], unpack(deadlines)) end
if #aging > 0 then redis.call('ZADD', KEYS[5], unpack(aging)) end
if cap > 0 then redis.call('ZADD', KEYS[6], unpack(index)) end
if cap > 0 then redis.call('ZREMRANGEBYRANK', KEYS[6], 0, -(cap + 1)) end
if weight > 0 and finish > now then redis.call('SET', KEYS[7], finish, 'PX', finish - now) end
redis.call('HINCRBY', KEYS[8], 'enqueued:' .. class, #ready / 2)
if hold == 0 then place(p, last[1], { class, class, last[2] }) end -- changes nothing, but wakes a worker
return answers
