-- Ends jobs of a pool with the engine's answers, or with errors that no retry would cure.
-- KEYS: 1 prefix, 2 stats
-- ARGV: 1.. id, token, status (succeeded|failed), data, prompt, completion, cached tokens, for each job
-- RETURNS: for each job 1 done, 2 this token had done it before, 0 the token is stale
-- INVARIANT: a job ends once; a stale token changes nothing.
-- INCLUDES: now, tell, place, cap, settle, finish
local now, sums, answers = now_ms(), { 0, 0, 0, 0, 0 }, {}
for i = 1, #ARGV, 7 do
  answers[#answers + 1] = finish(KEYS[1], { unpack(ARGV, i, i + 6) }, sums, now)
end
add_up(KEYS[2], sums)
return answers
