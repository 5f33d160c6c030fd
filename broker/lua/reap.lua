-- Recovers what nobody else will: leases of dead workers, retries that are due, jobs past their deadline, and jobs that
-- an index has lost (_reconcile.lua).
-- KEYS: 1 prefix, 2 leases, 3 deadlines, 4 index, 5 dead, 6 workers, 7 stats, 8 reaped
-- ARGV: 1 every_ms, 2 limit, 3 max_deaths, 4 keep_ms, 5 index_ms, 6 error for a death (JSON), 7-10 ages (ms),
--       11 lease_ms
-- RETURNS: {deaths, due, expired}, or {} if another process did it less than every_ms ago
-- INVARIANT: guarded by status and expiry; bounded by limit; a job goes back with its first score.
-- INCLUDES: now, tell, place, revive, cap, settle, note, requeue, bury, promote, reconcile
if redis.call('EXISTS', KEYS[8]) == 1 then return {} end
redis.call('DEL', KEYS[8]) -- a first write that memory pressure cannot refuse
redis.call('SET', KEYS[8], 1, 'PX', ARGV[1])
local p, now, limit = KEYS[1], now_ms(), tonumber(ARGV[2])
local deaths, expired = 0, 0

local function died(id)
  redis.call('ZREM', KEYS[2], id)
  local job = redis.call('HMGET', p .. 'job:' .. id, unpack(SETTLE_FIELDS))
  if job[1] ~= 'running' then return end
  local more = redis.call('HMGET', p .. 'job:' .. id, 'attached', 'why')
  local count = redis.call('HINCRBY', p .. 'job:' .. id, 'deaths', 1)
  note_attempt(p, id, job, more[2], 'death', '', now)
  deaths = deaths + 1
  local is_seen = more[1] == '1' and tonumber(job[4]) > 0
  if is_seen or count > tonumber(ARGV[3]) then note_failed(p, id, job, now) end
  if is_seen then return settle(p, id, job, 'failed', now, ARGV[6], 0) end
  if count > tonumber(ARGV[3]) then return bury(p, id, job, now, ARGV[6], tonumber(ARGV[4])) end
  requeue(p, id, now, 0)
  free_cap(p, job[10], job[11], now)
  tell(p, id, job[5], 'retry ' .. job[3] .. ' ' .. job[4] .. ' 0 queued', '')
end

local function overdue(id)
  redis.call('ZREM', KEYS[3], id)
  local job = redis.call('HMGET', p .. 'job:' .. id, unpack(SETTLE_FIELDS))
  if job[1] ~= 'queued' and job[1] ~= 'running' then return end
  settle(p, id, job, 'expired', now, '', 0)
  expired = expired + 1
end

promote(p, now, { ARGV[7], ARGV[8], ARGV[9], ARGV[10] }, limit)
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', 0, limit)) do overdue(id) end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, limit)) do died(id) end
local due = revive(p, now, limit)
reconcile(p, now, tonumber(ARGV[11]), died)
local old = { [KEYS[4]] = ARGV[5], [KEYS[5]] = ARGV[4], [KEYS[6]] = ARGV[1] * 60 }
for key, age in pairs(old) do
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', now - age, 'LIMIT', 0, limit)) do
    redis.call('ZREM', key, id)
  end
end
redis.call('HINCRBY', KEYS[7], 'deaths', deaths)
return { deaths, due, expired }
