-- What became of an attempt that did not end its job: JSON, for people; the newest 20 are kept. `job`: HMGET of SETTLE_FIELDS.
-- `ended`: error, busy, drain, preempt or death; `why`: as claim wrote it; `error`: JSON, or '' if there was none.
local function note_attempt(p, id, job, why, ended, error, now)
  local entry = string.format('{"at":%d,"claimed":%d,"worker":%s,"why":"%s","ended":"%s","error":%s}', now,
    tonumber(job[8]) or now, cjson.encode(job[15] or ''), why or '', ended, error ~= '' and error or 'null')
  redis.call('RPUSH', p .. 'hist:' .. id, entry)
  redis.call('LTRIM', p .. 'hist:' .. id, -20, -1)
end

-- A job that failed without a worker that could tell of it: for the live page, as broker/notable.py has it. 20 are kept, for a day.
local function note_failed(p, id, job, now)
  local created, claimed = tonumber(job[7]), tonumber(job[8]) or now
  local entry = { job_id = id, service_class = 'P' .. job[2], worker = job[15] or '', outcome = 'failed',
    wait_s = (claimed - created) / 1000, first_s = (now - created) / 1000, total_s = (now - created) / 1000, ended = now / 1000 }
  redis.call('LPUSH', p .. 'failed', cjson.encode(entry))
  redis.call('LTRIM', p .. 'failed', 0, 19)
  redis.call('PEXPIRE', p .. 'failed', 86400000)
end
