-- What became of an attempt that did not end its job: JSON, for people; the newest 20 are kept. `job`: HMGET of SETTLE_FIELDS.
-- `ended`: error, busy, drain, preempt or death; `why`: as claim wrote it; `error`: JSON, or '' if there was none.
local function note_attempt(p, id, job, why, ended, error, now)
  local entry = string.format('{"at":%d,"claimed":%d,"worker":%s,"why":"%s","ended":"%s","error":%s}', now,
    tonumber(job[8]) or now, cjson.encode(job[15] or ''), why or '', ended, error ~= '' and error or 'null')
  redis.call('RPUSH', p .. 'hist:' .. id, entry)
  redis.call('LTRIM', p .. 'hist:' .. id, -20, -1)
end
