-- Whether jobs may be queued. Both answer nothing, or { number of the limit, what waits, the limit }; -1: no limit.
-- `most`: jobs of the pool, jobs of the class, predicted ms of the class. A class of which nothing waits takes a job of
-- whatever length, or it could never be asked.
local function admit(p, class, most, n, ms)
  local pool, jobs, run = tonumber(most[1]), tonumber(most[2]), tonumber(most[3])
  if pool < 0 and jobs < 0 and run < 0 then return end
  local sums = redis.call('HMGET', p .. 'stats', 'queued:0', 'queued:1', 'queued:2', 'queued:3', 'queued_ms:' .. class)
  local all = (sums[1] or 0) + (sums[2] or 0) + (sums[3] or 0) + (sums[4] or 0)
  local waiting, waiting_ms = tonumber(sums[class + 1] or 0), tonumber(sums[5] or 0)
  if jobs >= 0 and waiting + n > jobs then return { 2, waiting, jobs } end
  if run >= 0 and waiting_ms + ms > run and (waiting > 0 or n > 1) then return { 3, waiting_ms, run } end
  if pool >= 0 and all + n > pool then return { 1, all, pool } end
end

-- For a job with this score: `most` predicted ms may be claimed before it.
local function too_late(p, class, score, most, share)
  local rank = redis.call('ZCOUNT', p .. 'ready:' .. class, '-inf', score)
  local _, ms = ahead(p, tonumber(class), false, rank, tonumber(share))
  if ms > tonumber(most) then return { 4, ms, tonumber(most) } end
end
