-- Adds what a worker's attempts have used to the queue's books: its counters, its totals, this minute's and this day's (UTC).
-- KEYS: 1 prefix, 2 stats, 3 totals
-- ARGV: 1 worker, 2 number of its flush, 3 ttl_ms of that number, 4 ttl_ms of a minute's book, 5 ttl_ms of a day's,
--       6.. books (letters of s, t, m, d), field, amount, for each sum
-- RETURNS: 1 added, 0 this flush had been added before
--          an error if one of the sums is no number, or would grow beyond 64 bits
-- INVARIANT: a flush counts once, however often it is sent. All of it is added or nothing (memory is full, an error).
-- INCLUDES: now
local p, now = KEYS[1], now_ms()
local flushed = p .. 'flushed:' .. ARGV[1]
if tonumber(ARGV[2]) <= tonumber(redis.call('GET', flushed) or 0) then return 0 end

local minute, day = p .. 'minute:' .. math.floor(now / 60000), p .. 'day:' .. math.floor(now / 86400000)
local books = { s = KEYS[2], t = KEYS[3], m = minute, d = day }
local added = {} -- by book: fields
for i = 6, #ARGV, 3 do
  local amount = string.match(ARGV[i + 2], '^-?(%d+)$')
  if not amount or #amount > 15 then return redis.error_reply('ERR no amount: ' .. ARGV[i + 2]) end
  for book in string.gmatch(ARGV[i], '.') do
    added[book] = added[book] or {}
    table.insert(added[book], ARGV[i + 1])
  end
end
for book, names in pairs(added) do
  for _, known in ipairs(redis.call('HMGET', books[book], unpack(names))) do
    local digits = string.match(known or '0', '^-?(%d+)$') -- with 18 of them there is room for any amount
    if not digits or #digits > 18 then return redis.error_reply('ERR no room beside ' .. known) end
  end
end

redis.call('SET', flushed, ARGV[2], 'PX', ARGV[3]) -- first, for it is refused when memory is full
for i = 6, #ARGV, 3 do
  for book in string.gmatch(ARGV[i], '.') do redis.call('HINCRBY', books[book], ARGV[i + 1], ARGV[i + 2]) end
end
redis.call('PEXPIRE', minute, ARGV[4])
redis.call('PEXPIRE', day, ARGV[5])
return 1
