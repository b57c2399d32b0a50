-- KEYS: the changes. ARGV: the version the asker knows. Returns the newest version, whether the list is complete,
-- the hashes that changed.
local newest = tonumber(redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2]) or 0
local since = tonumber(ARGV[1])
if newest == since then return {newest, 1, {}} end
local oldest = tonumber(redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]) or 0
-- Emptied since, or more changes than are kept.
if newest < since or (oldest > since and redis.call('ZCARD', KEYS[1]) >= 1000) then return {newest, 0, {}} end
return {newest, 1, redis.call('ZRANGE', KEYS[1], '(' .. ARGV[1], '+inf', 'BYSCORE')}
