-- Jobs' ends as their worker reports them: a report is
-- { id, token, status, data, prompt, completion, cached tokens, 1 if they are estimates, confidence }.
local SUMS = { 'tokens_in', 'tokens_out', 'tokens_cached' }

-- The job, if the report counts; and 1 it does, 2 this token had done it before, 0 the token is stale.
local function check(p, report, seen)
  local job = redis.call('HMGET', p .. 'job:' .. report[1], unpack(SETTLE_FIELDS))
  local token = report[2]
  if job[3] ~= token then return nil, 0 end
  if job[1] == report[3] or seen[report[1]] then return nil, 2 end
  if job[1] ~= 'running' then return nil, 0 end
  seen[report[1]] = true
  return job, 1
end

local function used(report)
  local counted = { 'prompt_used', report[5], 'output_used', report[6], 'cached_used', report[7] }
  if report[8] == '1' then
    counted[7], counted[8] = 'recounted', 1
  elseif report[5] + report[6] == 0 then
    counted = {} -- an engine that counts nothing
  end
  if report[3] == 'escalated' then
    counted[#counted + 1] = 'heir'
    counted[#counted + 1] = string.match(report[4], '^%S*')
  end
  if report[9] ~= '' then
    counted[#counted + 1] = 'conf'
    counted[#counted + 1] = report[9]
  end
  return unpack(counted)
end

-- One that was escalated is kept for as long as its successor may run, as it is by its id that callers ask.
local function prolong(p, report, job, now)
  if report[3] ~= 'escalated' then return end
  job[6] = job[6] + math.max(0, redis.call('HGET', p .. 'job:' .. report[1], 'deadline') - now)
end

-- Ends the jobs and adds to `sums`: tokens in, out and cached, ms of running, jobs.
local function finish(p, reports, jobs, sums, now)
  local ids, counts = {}, {}
  for i, report in ipairs(reports) do ids[i] = report[1] end
  redis.call('ZREM', p .. 'leases', unpack(ids))
  redis.call('ZREM', p .. 'deadlines', unpack(ids))
  for i, report in ipairs(reports) do
    local job = jobs[i]
    for at = 1, 3 do sums[at] = sums[at] + report[4 + at] end
    sums[4], sums[5] = sums[4] + now - job[8], sums[5] + 1
    local count = report[3] .. ':' .. job[2]
    counts[count] = (counts[count] or 0) + 1
    prolong(p, report, job, now)
    conclude(p, report[1], job, report[3], now, report[4], 0, used(report))
  end
  for name, n in pairs(counts) do redis.call('HINCRBY', p .. 'stats', name, n) end
end

-- Counts them; `run_ms` is a mean in which each job weighs 5 percent.
local function add_up(stats, sums)
  if sums[5] == 0 then return end
  for i, name in ipairs(SUMS) do
    if sums[i] > 0 then redis.call('HINCRBY', stats, name, sums[i]) end
  end
  local mean, run, old = redis.call('HGET', stats, 'run_ms'), sums[4] / sums[5], 0.95 ^ sums[5]
  redis.call('HSET', stats, 'run_ms', string.format('%.3f', mean and old * mean + (1 - old) * run or run))
end
