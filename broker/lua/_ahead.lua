-- How much is claimed before a job: how many jobs, and the ms that they are predicted to run. The jobs are counted; a
-- class's jobs are taken to be of its mean length, and a promoted one of the mean of the classes it may be of. At a level
-- that both wait at, promoted jobs take `share` percent of the claims.
local function mean_ms(sums, class, last)
  local jobs, ms = 0, 0
  for c = class, last do
    jobs, ms = jobs + (sums[2 * c + 1] or 0), ms + (sums[2 * c + 2] or 0)
  end
  return jobs > 0 and ms / jobs or 0
end

-- `rank`: jobs before it among those of its own kind (promoted or not) at its level.
local function ahead(p, level, promoted, rank, share)
  local sums = redis.call('HMGET', p .. 'stats', 'queued:0', 'queued_ms:0', 'queued:1', 'queued_ms:1', 'queued:2',
    'queued_ms:2', 'queued:3', 'queued_ms:3')
  local jobs, ms = 0, 0
  for l = 0, level do
    local ready = (l < level or promoted) and redis.call('ZCARD', p .. 'ready:' .. l) or rank
    local aged = l < 3 and redis.call('ZCARD', p .. 'aged:' .. l) or 0
    if l == level and promoted then
      ready, aged = math.min(ready, math.floor((rank + 1) * (100 - share) / share)), rank
    elseif l == level then
      aged = share < 100 and math.min(aged, math.floor((rank + 1) * share / (100 - share))) or aged
    end
    jobs, ms = jobs + ready + aged, ms + ready * mean_ms(sums, l, l) + aged * mean_ms(sums, l + 1, 3)
  end
  return jobs, math.floor(ms)
end
