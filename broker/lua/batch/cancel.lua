-- Stops a batch: slices that run write what is finished, no other is begun.
-- KEYS: 1 batch, 2 todo
-- ARGV: 1 grace_ms
-- RETURNS: {status before, status now, a unit to send if there is one}, or {} if there is no such batch
-- INVARIANT: what has ended stays as it ended; a batch that is being put together is not stopped any more.
-- INCLUDES: now, unit
local batch = redis.call('HMGET', KEYS[1], 'status', 'sent', 'done')
if not batch[1] then return {} end
if batch[1] ~= 'validating' and batch[1] ~= 'in_progress' then return { batch[1], batch[1] } end
local now = now_ms()
redis.call('HSET', KEYS[1], 'status', 'cancelling', 'cancelling_at', now)
if batch[1] == 'in_progress' and batch[2] == batch[3] then
  return { batch[1], 'cancelling', sent(KEYS[1], KEYS[2], 'finalize', now, ARGV[1]) }
end
return { batch[1], 'cancelling' }
