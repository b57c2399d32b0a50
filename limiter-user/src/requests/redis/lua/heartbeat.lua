-- KEYS: the instances by the time of their last heartbeat, the secret's fingerprint. ARGV: this instance,
-- milliseconds after which one is gone, this instance's fingerprint. Returns how many are there, and whether the
-- secret is the fleet's.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
-- From before the clock was set back.
redis.call('ZREMRANGEBYSCORE', KEYS[1], now + 1, '+inf')
redis.call('PEXPIRE', KEYS[1], ARGV[2] * 6)
local fingerprint = redis.call('GET', KEYS[2])
if not fingerprint then
  redis.call('SET', KEYS[2], ARGV[3])
  fingerprint = ARGV[3]
end
return {redis.call('ZCARD', KEYS[1]), fingerprint == ARGV[3] and 1 or 0}
