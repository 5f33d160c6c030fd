-- Accepts jobs that differ only in their request and forecast: all of them or, past a limit, none.
-- KEYS: 1 prefix, 2 ready of the class, 3 delayed, 4 deadlines, 5 aging, 6 index, 7 fair, 8 stats
-- ARGV: 1 class, 2 sjf_weight, 3 priority_ms, 4 weight, 5 deadline_ms, 6 hold_ms, 7 index_cap, 8 reply,
--       9-12 most jobs of the pool, jobs of the class, predicted ms of the class, predicted ms ahead (-1: no limit),
--       13 aged share in percent, 14 whether to look up the position (1) or not (0),
--       15 number of words that follow and that all jobs have in their hash (name, value pairs),
--       16.. those, then for each job: id, payload, cost_ms, age_ms, ptok, otok, need, pfx, tool ('' or 0: not stored)
-- RETURNS: {0, jobs and predicted ms ahead of the last one, or -1, then for each job its status if it was known, else false}
--          or {1-4 the limit that refused them, in the order of 9-12, what waits, the limit}
-- INVARIANT: an id is accepted once; a repeat only renews where to reply. A refusal changes nothing.
-- INCLUDES: now, place, ahead, admit
local OPTIONAL = { 'cost', false, 'ptok', 'otok', 'need', 'pfx', 'tool' }
local p, now, class = KEYS[1], now_ms(), ARGV[1]
local hold, weight, cap, first = tonumber(ARGV[6]), tonumber(ARGV[4]), tonumber(ARGV[7]), 16 + ARGV[15]
-- numbers become text once, not at every command that takes them
local created, deadline = string.format('%d', now), string.format('%d', now + ARGV[5])
local finish = weight > 0 and tonumber(redis.call('GET', KEYS[7]) or 0) or 0
local answers, repeats, fresh, seen, total = { 0, -1, -1 }, {}, {}, {}, 0
for i = first, #ARGV, 9 do
  local known = redis.call('HGET', p .. 'job:' .. ARGV[i], 'status')
  answers[#answers + 1] = known or seen[ARGV[i]] or false
  if known then
    repeats[#repeats + 1] = ARGV[i]
  elseif not seen[ARGV[i]] then
    fresh[#fresh + 1], seen[ARGV[i]], total = i, 'queued', total + ARGV[i + 2]
  end
end

local function score_at(start, cost) return string.format('%.17g', start + ARGV[2] * cost + ARGV[3]) end
if #fresh > 0 then
  local refused = admit(p, class, { ARGV[9], ARGV[10], ARGV[11] }, #fresh, total)
  if not refused and ARGV[12] ~= '-1' then
    refused = too_late(p, class, score_at(math.max(now, finish), ARGV[fresh[1] + 2]), ARGV[12], ARGV[13])
  end
  if refused then return refused end
end

local hash = { 'status', 'queued', 'class', class, 'created', created, 'deadline', deadline, 'score', 0, 'age', 0,
  unpack(ARGV, 16, first - 1) }
local SCORE, AGE, COMMON = 10, 12, #hash
local sets, last = { {}, {}, {}, {} }, nil -- ready or delayed, deadlines, aging, index: score, id, score, id, ...

local function add(set, score, id) set[#set + 1], set[#set + 2] = score, id end

local function accept(i)
  local id, cost, start, n = ARGV[i], tonumber(ARGV[i + 2]), now, COMMON
  redis.call('SET', p .. 'in:' .. id, ARGV[i + 1]) -- first, for it is refused when memory is full
  if weight > 0 then
    start = math.max(now, finish)
    finish = math.ceil(start + cost / weight)
  end
  hash[SCORE], hash[AGE] = score_at(start, cost), ARGV[i + 3]
  for at, name in ipairs(OPTIONAL) do
    local value = ARGV[i + 1 + at]
    if name and value ~= '0' and value ~= '' then hash[n + 1], hash[n + 2], n = name, value, n + 2 end
  end
  redis.call('HSET', p .. 'job:' .. id, unpack(hash, 1, n))
  add(sets[1], hold > 0 and now + hold or hash[SCORE], id)
  if ARGV[i + 3] ~= '0' then add(sets[3], math.min(now + ARGV[i + 3], deadline), id) else add(sets[2], deadline, id) end
  if cap > 0 then add(sets[4], created, id) end
  last = { id, hash[SCORE] }
end

for _, i in ipairs(fresh) do accept(i) end
for _, id in ipairs(ARGV[8] ~= '' and repeats or {}) do redis.call('HSET', p .. 'job:' .. id, 'reply', ARGV[8]) end
if not last then return answers end
for at, key in ipairs({ hold > 0 and KEYS[3] or KEYS[2], KEYS[4], KEYS[5], KEYS[6] }) do
  if #sets[at] > 0 then redis.call('ZADD', key, unpack(sets[at])) end
end
if cap > 0 then redis.call('ZREMRANGEBYRANK', KEYS[6], 0, -(cap + 1)) end
if weight > 0 and finish > now then redis.call('SET', KEYS[7], finish, 'PX', finish - now) end
redis.call('HINCRBY', KEYS[8], 'enqueued:' .. class, #fresh)
count_waiting(p, class, #fresh, total)
if hold == 0 then wake(p, class) end
if ARGV[14] == '1' then
  local rank = redis.call('ZRANK', KEYS[2], last[1]) or redis.call('ZCOUNT', KEYS[2], '-inf', last[2])
  answers[2], answers[3] = ahead(p, tonumber(class), false, rank, tonumber(ARGV[13]))
end
return answers
