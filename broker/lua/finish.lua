-- Ends jobs of a pool with the engine's answers, or with errors that no retry would cure.
-- KEYS: 1 prefix, 2 stats
-- ARGV: 1-5 rule of the breaker, 6.. id, token, status (succeeded|failed|escalated), data, prompt, completion, cached tokens, estimates ("1"),
--       confidence (or ''), for each job
-- RETURNS: for each job 1 done, 2 this token had done it before, 0 the token is stale
-- INVARIANT: a job ends once; a stale token changes nothing.
-- INCLUDES: now, tell, place, cap, settle, breaker, finish

-- What the breaker of its worker is told of a job; nothing where the request was at fault.
local function outcome(report)
  if report[3] == 'succeeded' then return 'ok' end
  if report[3] ~= 'escalated' or string.find(report[4], ' engine_rejected', 1, true) then return end
  if string.find(report[4], ' pool_out', 1, true) or string.find(report[4], ' worker_died', 1, true) then return end
  return string.find(report[4], ' engine_error', 1, true) and 'err' or 'ok'
end

local function judge(p, reports, jobs, rule, now)
  local passed = {}
  for i, report in ipairs(reports) do
    local job, found = jobs[i], outcome(report)
    if found == 'ok' then passed[job[15]] = (passed[job[15]] or 0) + 1 end
    if found == 'ok' and job[16] == job[3] then probe_passed(p, job[15], rule, now) end
    if found == 'err' then engine_failed(p, job, job[12], rule, now) end
  end
  for worker, n in pairs(passed) do count_outcomes(p, worker, 'ok', n, rule, now) end
end

local now, answers, seen, reports, jobs = now_ms(), {}, {}, {}, {}
for i = 6, #ARGV, 9 do
  local report = { unpack(ARGV, i, i + 8) }
  local job, answer = check(KEYS[1], report, seen)
  answers[#answers + 1] = answer
  if job then
    reports[#reports + 1], jobs[#jobs + 1] = report, job
  end
end
if #jobs > 0 then
  add_up(KEYS[2], finish(KEYS[1], reports, jobs, now), #jobs)
  judge(KEYS[1], reports, jobs, rule_of(ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]), now)
end
return answers
