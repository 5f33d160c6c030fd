-- Takes what a request needs of the limits of its key and tenant; or, at its end, puts right what it had taken.
-- KEYS: 1 reservation, then for each scope: window, open
-- ARGV: 1 take|settle, 2 id, 3 tokens (settle: -1 as taken), 4 lease_ms,
--       5 names of the scopes, kept for whoever settles; 6.. of each scope, for take: requests a minute, tokens a minute, open at a time (-1: not limited)
-- RETURNS: take: {0 or the scope that refused, requests|tokens|open, ms until it has room, then for each scope:
--          requests, ms until all are back, tokens, ms until all are back}; settle: 1, or 0 if it was settled before
-- INVARIANT: what is taken comes back a minute later, so no minute sees more than the limit. An id takes once, settles once.
-- INCLUDES: now, window
local scopes = (#KEYS - 1) / 2

local function refusal(w, i, n)
  local most = { unpack(ARGV, 3 + 3 * i, 5 + 3 * i) }
  local requests, tokens, open = tonumber(most[1]), tonumber(most[2]), tonumber(most[3])
  if requests >= 0 and w.r + 1 > requests then return { i, 'requests', room_ms(w, 'r', w.r + 1 - requests) } end
  if tokens >= 0 and w.t > 0 and w.t + n > tokens then return { i, 'tokens', room_ms(w, 't', w.t + n - tokens) } end
  if open >= 0 and redis.call('ZCOUNT', KEYS[1 + 2 * i], now, '+inf') >= open then return { i, 'open', 1000 } end
end

local function put_right(w, more, at)
  if at >= w.at then return write(w, 't', more, at) end
  if more > 0 then write(w, 't', more, slot) end -- what it had taken is back already; what came on top was not charged yet
end

local taken, windows, answer = redis.call('GET', KEYS[1]), {}, { 0, '', 0 }
if ARGV[1] == 'settle' and not taken then return 0 end
for i = 1, scopes do windows[i] = read(KEYS[2 * i]) end
if ARGV[1] == 'settle' then
  local at, n = string.match(taken, '(%d+) (%d+) ')
  redis.call('DEL', KEYS[1])
  for i, w in ipairs(windows) do
    redis.call('ZREM', KEYS[1 + 2 * i], ARGV[2])
    if ARGV[3] ~= '-1' and ARGV[3] ~= n then put_right(w, ARGV[3] - n, tonumber(at)) end
  end
  return 1
end
local n, lease = tonumber(ARGV[3]), tonumber(ARGV[4])
for i, w in ipairs(windows) do answer = (answer[1] == 0 and not taken) and refusal(w, i, n) or answer end
if answer[1] == 0 and not taken then
  redis.call('SET', KEYS[1], slot .. ' ' .. n .. ' ' .. ARGV[5], 'PX', lease)
  for i, w in ipairs(windows) do
    local open = KEYS[1 + 2 * i]
    write(w, 'r', 1, slot)
    write(w, 't', n, slot)
    redis.call('ZREMRANGEBYSCORE', open, '-inf', now)
    redis.call('ZADD', open, now + lease, ARGV[2])
    if redis.call('PTTL', open) < lease then redis.call('PEXPIRE', open, lease) end
  end
end
for _, w in ipairs(windows) do
  for _, kind in ipairs({ 'r', 't' }) do answer[#answer + 1], answer[#answer + 2] = w[kind], back_ms(w, kind) end
end
return answer
