-- Redis' own clock, in whole milliseconds since the epoch. The replay loads the scripts with another `now_ms`.
local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end
