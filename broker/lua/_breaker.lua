-- A worker's breaker: when too many of its requests fail, claim gives it nothing for a while, then one job at a time.
-- `rule`: most percent of errors, of at least so many requests, ms of the window, ms that it is open first, probes that must pass.
-- brk:<worker>: until (ms: open before, half-open after; absent: closed), state, trips, good, probe (a job), probed, closed.
-- brk:<worker>:<n>: ok and err of a sixth of the window. All have a TTL, so nothing can stay half-open for good.
local BREAKER_KEEP_MS, OPEN_MAX_MS, PROBE_MS = 900000, 300000, 10000

local function rule_of(most, least, window, open, probes)
  return { most = tonumber(most), least = tonumber(least), window = tonumber(window), open = tonumber(open), probes = tonumber(probes) }
end

local function sixth(p, worker, rule, now, back)
  return p .. 'brk:' .. worker .. ':' .. (math.floor(now * 6 / rule.window) - back)
end

local function count_outcomes(p, worker, name, n, rule, now)
  local key = sixth(p, worker, rule, now, 0)
  if rule.most > 0 and redis.call('HINCRBY', key, name, n) == n then redis.call('PEXPIRE', key, 2 * rule.window) end
end

-- Open, each time twice as long unless it had been closed for ten windows. Nobody leaves a job to it meanwhile (_spread.lua).
local function trip(p, worker, rule, now)
  local key = p .. 'brk:' .. worker
  local old = redis.call('HMGET', key, 'trips', 'closed')
  local trips = old[2] and now - old[2] > 10 * rule.window and 1 or (old[1] or 0) + 1
  local open_ms = math.max(rule.open, math.min(rule.open * 2 ^ (trips - 1), OPEN_MAX_MS))
  redis.call('HDEL', key, 'probe', 'closed')
  redis.call('HSET', key, 'until', now + open_ms, 'state', 'open', 'trips', trips, 'good', 0)
  redis.call('PEXPIRE', key, BREAKER_KEEP_MS)
  redis.call('SET', p .. 'takes:' .. worker, '0000', 'PX', open_ms)
  redis.call('HINCRBY', p .. 'stats', 'breaker:opened', 1)
end

-- `job`: SETTLE_FIELDS. One that had failed `before` may be at fault itself: it tells of its worker only where it is a probe.
local function engine_failed(p, job, before, rule, now)
  if rule.most <= 0 then return end
  local worker, ok, err = job[15], 0, 0
  local is_closed = redis.call('HEXISTS', p .. 'brk:' .. worker, 'until') == 0
  if not is_closed and job[16] == job[3] then return trip(p, worker, rule, now) end
  if before then return end
  count_outcomes(p, worker, 'err', 1, rule, now)
  if not is_closed then return end
  for back = 0, 5 do
    local part = redis.call('HMGET', sixth(p, worker, rule, now, back), 'ok', 'err')
    ok, err = ok + (part[1] or 0), err + (part[2] or 0)
  end
  if ok + err >= rule.least and 100 * err > rule.most * (ok + err) then trip(p, worker, rule, now) end
end

local function probe_passed(p, worker, rule, now)
  local key = p .. 'brk:' .. worker
  if redis.call('HEXISTS', key, 'until') == 0 then return end
  redis.call('HDEL', key, 'probe')
  if redis.call('HINCRBY', key, 'good', 1) < rule.probes then return end
  redis.call('HSET', key, 'closed', now)
  redis.call('HDEL', key, 'until', 'state')
  for back = 0, 5 do redis.call('DEL', sixth(p, worker, rule, now, back)) end
  redis.call('HINCRBY', p .. 'stats', 'breaker:closed', 1)
end

-- For how many ms `claim` gives the asker nothing; nil if it may have jobs, or (`probing`) one. A probe is void if its job runs no more,
-- or has taken too long. A clock that was put back opens nothing for longer.
local function barred_ms(p, ask, now)
  local found = redis.call('HMGET', p .. 'brk:' .. ask.worker, 'until', 'probe', 'probed')
  if not found[1] then return end
  local left = found[1] - now
  if left > 0 and left < BREAKER_KEEP_MS then return left end
  left = found[2] and found[3] + PROBE_MS - now or 0
  local job = found[2] and redis.call('HMGET', p .. 'job:' .. found[2], 'status', 'token', 'probe') or {}
  if left > 0 and left <= PROBE_MS and job[1] == 'running' and job[2] == job[3] then return left end
  ask.probing = true
end

local function note_probe(p, ask, now)
  if not ask.probing then return end
  local id, key = ask.rows[1][1], p .. 'brk:' .. ask.worker
  redis.call('HSET', p .. 'job:' .. id, 'probe', ask.rows[1][2])
  redis.call('HSET', key, 'probe', id, 'probed', now, 'state', 'half-open')
  redis.call('PEXPIRE', key, BREAKER_KEEP_MS)
  redis.call('HINCRBY', p .. 'stats', 'breaker:probes', 1)
end
