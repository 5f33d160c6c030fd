-- Leases jobs for up to n slots to a worker, best first, of those that it has room for; see docs/scheduling.md.
-- KEYS: 1 prefix, 2 marker, 3 stats, 4 delayed
-- ARGV: 1 worker, 2 n, 3 lease_ms, 4-7 ages (ms at level 0-3), 8 kv tokens free, 9 kv tokens in all, 10 prefill tokens,
--       11 bulk slots (classes 2 and 3), 12 look, 13 patience_ms, 14 bypass_n, 15 bypass_ms, 16 aged share in percent, 17 slots in all,
--       18 speed in percent of a usual worker's, 19 classes that it takes (0 or 1 for each; then r: to rescue them), 20 home: 0 here, 1 in another shard, 2 elsewhere,
--       21 prefill tokens in all
-- RETURNS: {more, ms until the next retry or passed-over job may be claimed or -1, job, job, ...},
--          job = {id, token, class, endpoint, stream, attached, attempts, cost_ms, deadline_ms, tenant, need, preempts,
--          heir, plan, prompt tokens, slots, ms since it was accepted, trace, payload}
--          more = 0 nothing is left, 1 claim again, 2 what is left is not for this worker now, 3 nor is it to claim elsewhere,
--          4 its breaker is open: nothing for so many ms, 5 as 3, nor are P0 jobs elsewhere (it holds room at level 0)
-- INVARIANT: a job is leased to one worker at a time; its token is higher than any it had before.
-- INCLUDES: now, tell, place, revive, cap, settle, promote, breaker, spread, prefix, weigh, pick, take
local p, now = KEYS[1], now_ms()
local ask = { worker = ARGV[1], lease_ms = tonumber(ARGV[3]), kv = tonumber(ARGV[8]), kv_total = tonumber(ARGV[9]),
  prefill = tonumber(ARGV[10]), prefill_total = tonumber(ARGV[21]), bulk = tonumber(ARGV[11]), patience_ms = tonumber(ARGV[13]),
  bypass_n = tonumber(ARGV[14]), bypass_ms = tonumber(ARGV[15]), holds = redis.call('GET', p .. 'hold') == ARGV[1],
  slots = tonumber(ARGV[17]), free = tonumber(ARGV[2]), speed = ARGV[18] / 100, takes = ARGV[19], home = ARGV[20],
  rows = {}, from = {}, taken = {}, deadlines = {}, count = {}, cost = {} }
local look, share, hint, held = tonumber(ARGV[12]), tonumber(ARGV[16]), -1, false

redis.call('ZREM', p .. 'spare', ask.worker) -- a first write that memory pressure cannot refuse
promote(p, now, { ARGV[4], ARGV[5], ARGV[6], ARGV[7] }, 32)
revive(p, now, 64)
local barred = barred_ms(p, ask, now)

-- Takes a job, ends it, or passes it over; true if it is none the less still in its set.
local function consider(id, set, level, contested)
  local job = read_job(p, id)
  if job.status ~= 'queued' then redis.call('ZREM', set, id) return false end
  if tonumber(job.deadline) <= now then
    settle(p, id, redis.call('HMGET', p .. 'job:' .. id, unpack(SETTLE_FIELDS)), 'expired', now, '', 0)
    return false
  end
  if over_cap(p, job.tenant, job.cap) then
    redis.call('ZREM', set, id)
    set_aside(p, id, job.tenant, redis.call('HGET', p .. 'job:' .. id, 'score'))
    return false
  end
  local verdict, more = weigh(p, id, job, ask, now)
  if verdict == 'take' then
    take(p, id, set, job, ask, now)
    if contested then charge(p, level, job) end
    if more then redis.call('HINCRBY', KEYS[3], more .. ':' .. job.class, 1) end
    return false
  end
  if verdict == 'wait' and (hint < 0 or more < hint) then hint = more end
  held = verdict == 'hold' and (level == 0 and 5 or 3)
  return true
end

local passed = 0
local paused = redis.call('HGET', KEYS[3], 'paused') == '1'
local rival, rival_ease = roomiest(p, ask, now)
for level = 0, 3 do
  if ask.free <= 0 or held or paused or barred then break end
  local queue = read_level(p, level, ask.free + look, ask)
  passed = passed + queue.others
  if rival then ask.rival, ask.rival_ease = not is_crowded(queue, ask.slots) and rival, rival_ease end
  for _ = 1, #queue.ready + #queue.aged do
    if ask.free <= 0 or held then break end
    local id, set, contested = pick(queue, share)
    if consider(id, set, level, contested) then passed = passed + 1 end
  end
  -- jobs that had ended used up the read: the rest of this level is still before the next one
  if queue.cut and passed == 0 and ask.free > 0 then break end
end

lease(p, ask, now)
if not (barred or ask.probing or rescues(ask)) then note_room(p, ask) end
local left = 0
for level = 0, 3 do left = left + redis.call('ZCARD', p .. 'ready:' .. level) + redis.call('ZCARD', p .. 'aged:' .. level) end
local more = barred and 4 or (left == 0 or paused) and 0 or held or (passed > 0 and 2 or 1)
if more > 0 and left > 0 then redis.call('ZADD', KEYS[2], 0, 'work') end
local due = redis.call('ZRANGE', KEYS[4], 0, 0, 'WITHSCORES')
local wait = due[2] and math.max(0, due[2] - now) or -1
if hint >= 0 and (wait < 0 or hint < wait) then wait = hint end
return { more, barred or wait, unpack(ask.rows) }
