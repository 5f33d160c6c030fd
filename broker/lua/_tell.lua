-- Publishes one message about a job to whoever waits for it and to whoever watches it.
-- Message: "<id> <kind> <token> <seq> <queue_ms> <status>\n<data>"; readers drop what they have seen by (token, seq).
local function tell(p, id, reply, head, data)
  local message = id .. ' ' .. head .. '\n' .. data
  if reply and reply ~= '' then redis.call('PUBLISH', reply, message) end
  redis.call('PUBLISH', p .. 'out:' .. id, message)
end
