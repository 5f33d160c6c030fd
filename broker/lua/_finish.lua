-- One job's end as its worker reports it: `report` is { id, token, status, data, prompt, completion, cached tokens }.
-- Adds to `sums` (tokens in, out and cached, ms of running, jobs). Answers 1 done, 2 this token had done it before, 0 the
-- token is stale.
local SUMS = { 'tokens_in', 'tokens_out', 'tokens_cached' }

local function finish(p, report, sums, now)
  local id, token, status, data = report[1], report[2], report[3], report[4]
  local job = redis.call('HMGET', p .. 'job:' .. id, unpack(SETTLE_FIELDS))
  if job[3] ~= token then return 0 end
  if job[1] == status then return 2 end
  if job[1] ~= 'running' then return 0 end
  settle(p, id, job, status, now, data, 0, 'prompt_used', report[5], 'output_used', report[6], 'cached_used', report[7])
  for i = 1, 3 do sums[i] = sums[i] + report[4 + i] end
  sums[4], sums[5] = sums[4] + now - job[8], sums[5] + 1
  return 1
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
