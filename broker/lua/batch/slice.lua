-- Writes down one slice of a batch that is being planned.
-- KEYS: 1 batch, 2 plan unit, 3 slice unit
-- ARGV: 1 token of the plan, 2.. name, value pairs of the slice's hash
-- RETURNS: 1 written, 0 the token is stale
-- INVARIANT: only the planner that holds the lease cuts slices.
-- INCLUDES: none
local batch = redis.call('HMGET', KEYS[1], 'status', 'slices')
if redis.call('HGET', KEYS[2], 'token') ~= ARGV[1] or batch[2] ~= '0' then return 0 end
if batch[1] ~= 'validating' and batch[1] ~= 'cancelling' then return 0 end
redis.call('HSET', KEYS[3], unpack(ARGV, 2))
redis.call('PEXPIRE', KEYS[3], redis.call('PTTL', KEYS[1]))
return 1
