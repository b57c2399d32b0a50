-- Integers only: counts and times stay below 2^53, where doubles are exact, and are written with %.0f, because
-- Lua's own conversion to text rounds at 14 digits.
local format, floor, ceil, match, sub, max, min =
  string.format, math.floor, math.ceil, string.match, string.sub, math.max, math.min
-- A clock set back by at most this many microseconds stands still for a state until it has caught up. State from
-- further ahead is moved: as full as it was, it goes on from the clock's new time. A moved state is written even by a
-- refusal, or every question would move it again and it would never drain; a peek writes nothing.
local AHEAD, moved = 60000000, false
-- A number above this is none of ours.
local EXACT = 4503599627370496
-- States that were of the wrong type or not in our form.
local unreadable = 0

local function read(key)
  local text = redis.pcall('GET', key)
  if type(text) ~= 'table' then return text end
  if not match(text.err, 'WRONGTYPE') then return redis.call('GET', key) end
  unreadable = unreadable + 1
  return false
end

-- Value and life in one command; a state that says nothing is no key.
local function write(key, text, micros)
  if text then redis.call('SET', key, text, 'PX', ceil(micros / 1000) + 1) else redis.call('DEL', key) end
end
