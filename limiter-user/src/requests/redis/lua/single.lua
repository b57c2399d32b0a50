-- One limit. KEYS[1]: its state. ARGV: mode, wait, letter, enforced, cost, limit, window, burst, unit.
local time = redis.call('TIME')
local us = time[1] * 1000000 + time[2]
local mode, wait, letter, enforced = ARGV[1], ARGV[2] == '1', ARGV[3], ARGV[4] == '1'
local cost, limit, window, burst, unit =
  tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local ok, retry, a, b, c, d, e = JUDGE(KEYS[1], us, limit, window, burst, unit, cost, mode, wait, letter)
local charge = ok and cost > 0 and mode ~= 'P'
local remaining, reset, delay =
  CONCLUDE(KEYS[1], us, limit, window, burst, unit, cost, mode, wait, letter, charge, a, b, c, d, e)
return {(ok or not enforced) and 1 or 0, unreadable, us, ok and 1 or 0, remaining, retry, reset, delay}
