-- Jobs' ends as their worker reports them: a report is
-- { id, token, status, data, prompt, completion, cached tokens, 1 if they are estimates, confidence }.

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

-- Its end; why it was handed on; and what a verdict by its confidence said.
local function count_end(counts, report, class)
  local names = { report[3] .. ':' .. class }
  if report[3] == 'escalated' then names[2] = 'handed_on:' .. (string.match(report[4], ' (%S+)') or 'unknown') end
  if report[9] ~= '' then names[#names + 1] = 'judged:' .. report[3] end
  for _, name in ipairs(names) do counts[name] = (counts[name] or 0) + 1 end
end

-- Ends the jobs; how many ms they ran.
local function finish(p, reports, jobs, now)
  local ids, counts, run_ms = {}, {}, 0
  for i, report in ipairs(reports) do ids[i] = report[1] end
  redis.call('ZREM', p .. 'leases', unpack(ids))
  redis.call('ZREM', p .. 'deadlines', unpack(ids))
  for i, report in ipairs(reports) do
    local job = jobs[i]
    run_ms = run_ms + now - job[8]
    count_end(counts, report, job[2])
    prolong(p, report, job, now)
    conclude(p, report[1], job, report[3], now, report[4], 0, used(report))
  end
  for name, n in pairs(counts) do redis.call('HINCRBY', p .. 'stats', name, n) end
  return run_ms
end

-- `run_ms` in the stats is a mean in which each job weighs 5 percent.
local function add_up(stats, run_ms, n)
  local mean, run, old = redis.call('HGET', stats, 'run_ms'), run_ms / n, 0.95 ^ n
  redis.call('HSET', stats, 'run_ms', string.format('%.3f', mean and old * mean + (1 - old) * run or run))
end
