-- KEYS: the record, the changes. ARGV: the record's text (empty removes it), its hash.
if ARGV[1] == '' then redis.call('DEL', KEYS[1]) else redis.call('SET', KEYS[1], ARGV[1]) end
local newest = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')
-- On the clock, so that a store that was emptied does not count from one again.
local time = redis.call('TIME')
local version = math.max((tonumber(newest[2]) or 0) + 1, time[1] * 1000000 + time[2])
redis.call('ZADD', KEYS[2], string.format('%.0f', version), ARGV[2])
redis.call('ZREMRANGEBYRANK', KEYS[2], 0, -1001)
return 1
