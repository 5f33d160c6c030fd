-- Ends a batch: with its files, or failed because its input cannot be used at all.
-- KEYS: 1 batch, 2 todo, 3 unit (plan or finalize)
-- ARGV: 1 name of the unit, 2 token, 3 errors (JSON) or '', 4 output file, 5 error file, 6 ttl_ms
-- RETURNS: completed|cancelled|expired|failed, or false if the token is stale
-- INVARIANT: a batch ends once.
-- INCLUDES: now
if redis.call('HGET', KEYS[3], 'token') ~= ARGV[2] or not redis.call('ZSCORE', KEYS[2], ARGV[1]) then return false end
local batch = redis.call('HMGET', KEYS[1], 'status', 'overdue')
local status = 'completed'
if ARGV[3] ~= '' then
  status = 'failed'
elseif batch[1] == 'cancelling' then
  status = 'cancelled'
elseif batch[2] then
  status = 'expired'
end
redis.call('DEL', KEYS[2], KEYS[3])
redis.call('HSET', KEYS[1], 'status', status, status .. '_at', now_ms(),
  'errors', ARGV[3], 'output_file', ARGV[4], 'error_file', ARGV[5])
redis.call('PEXPIRE', KEYS[1], ARGV[6])
return status
