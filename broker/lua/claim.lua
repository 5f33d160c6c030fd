-- Leases up to n jobs to a worker, best first, of those that it has room for; see docs/scheduling.md.
-- KEYS: 1 prefix, 2 marker, 3 stats, 4 delayed
-- ARGV: 1 worker, 2 n, 3 lease_ms, 4-7 ages (ms at level 0-3), 8 kv tokens free, 9 kv tokens in all, 10 prefill tokens,
--       11 bulk slots (classes 2 and 3), 12 look, 13 patience_ms, 14 bypass_n, 15 bypass_ms, 16 aged share in percent
-- RETURNS: {more, ms until the next retry or passed-over job may be claimed or -1, job, job, ...},
--          job = {id, token, class, endpoint, stream, attached, attempts, cost_ms, deadline_ms, tenant, need, preempts, payload}
--          more = 0 nothing is left, 1 claim again, 2 what is left is not for this worker now
-- INVARIANT: a job is leased to one worker at a time; its token is higher than any it had before.
-- INCLUDES: now, tell, place, revive, cap, settle, promote, prefix, weigh, pick, take
local p, now, wanted = KEYS[1], now_ms(), tonumber(ARGV[2])
local ask = { worker = ARGV[1], lease_ms = tonumber(ARGV[3]), kv = tonumber(ARGV[8]), kv_total = tonumber(ARGV[9]),
  prefill = tonumber(ARGV[10]), bulk = tonumber(ARGV[11]), patience_ms = tonumber(ARGV[13]),
  bypass_n = tonumber(ARGV[14]), bypass_ms = tonumber(ARGV[15]), holds = redis.call('GET', p .. 'hold') == ARGV[1],
  taken = {}, deadlines = {}, count = {} }
local look, share, jobs, hint, held = tonumber(ARGV[12]), tonumber(ARGV[16]), {}, -1, false

promote(p, now, { ARGV[4], ARGV[5], ARGV[6], ARGV[7] }, 32)
revive(p, now, 64)

-- Takes a job, ends it, or passes it over; true if it is none the less still in its set.
local function consider(id, set)
  local job = read_job(p, id)
  if job.status ~= 'queued' then redis.call('ZREM', set, id) return false end
  if tonumber(job.deadline) <= now then
    settle(p, id, settle_fields(job), 'expired', now, '', 0)
    return false
  end
  if over_cap(p, job.tenant, job.cap) then
    redis.call('ZREM', set, id)
    set_aside(p, id, job.tenant, job.score)
    return false
  end
  local verdict, more = weigh(p, id, job, ask, now)
  if verdict == 'take' then
    redis.call('ZREM', set, id)
    jobs[#jobs + 1] = take(p, id, job, ask, now)
    if more then redis.call('HINCRBY', KEYS[3], more .. ':' .. job.class, 1) end
    return false
  end
  if verdict == 'wait' and (hint < 0 or more < hint) then hint = more end
  held = verdict == 'hold'
  return true
end

local passed = 0
local paused = redis.call('HGET', KEYS[3], 'paused') == '1'
for level = 0, 3 do
  if #jobs >= wanted or held or paused then break end
  local queue = read_level(p, level, wanted - #jobs + look)
  for _ = 1, #queue.ready + #queue.aged do
    if #jobs >= wanted or held then break end
    local id, set = pick(queue, share)
    if consider(id, set) then passed = passed + 1 end
  end
  -- jobs that had ended used up the read: the rest of this level is still before the next one
  if queue.cut and passed == 0 and #jobs < wanted then break end
end

lease(p, ask, now)
local left = 0
for level = 0, 3 do left = left + redis.call('ZCARD', p .. 'ready:' .. level) + redis.call('ZCARD', p .. 'aged:' .. level) end
local more = (left == 0 or paused) and 0 or (passed > 0 and 2 or 1)
if more > 0 then redis.call('ZADD', KEYS[2], 0, 'work') end
local due = redis.call('ZRANGE', KEYS[4], 0, 0, 'WITHSCORES')
local wait = due[2] and math.max(0, due[2] - now) or -1
if hint >= 0 and (wait < 0 or hint < wait) then wait = hint end
return { more, wait, unpack(jobs) }
