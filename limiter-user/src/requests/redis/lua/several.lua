-- All limits or none. `rules` has seven items per key: letter, enforced, cost, limit, window, burst, unit, from
-- `first` on; `same_cost`, if given, is the cost for all of them.
local function decide(keys, mode, wait, rules, first, same_cost)
  local time = redis.call('TIME')
  local us = time[1] * 1000000 + time[2]
  local all, n, state, out = true, #keys, {}, {1, 0, us}
  unreadable = 0
  for i = 1, n do
    for j = 1, i - 1 do
      if keys[i] == keys[j] then return {err = 'LIMITER two limits of one decision share the key ' .. keys[i]} end
    end
    local r = first + (i - 1) * 7
    local letter, limit, cost = rules[r], tonumber(rules[r + 3]), same_cost or tonumber(rules[r + 2])
    local ok, retry, a, b, c, d, e
    moved = false
    if limit == 0 then
      ok = mode == 'R' or mode == 'S'
      retry = ok and 0 or -1
    else
      ok, retry, a, b, c, d, e = judge[letter](keys[i], us, limit, tonumber(rules[r + 4]), tonumber(rules[r + 5]),
        tonumber(rules[r + 6]), cost, mode, wait, letter)
    end
    if not ok and tonumber(rules[r + 1]) == 1 then all = false end
    state[i] = {ok, retry, cost, limit, a, b, c, d, e, moved}
  end
  for i = 1, n do
    local s, r, o = state[i], first + (i - 1) * 7, 3 + (i - 1) * 5
    local remaining, reset, delay = 0, 0, 0
    if s[4] > 0 then
      moved = s[10]
      local charge = all and s[1] and s[3] > 0 and mode ~= 'P'
      remaining, reset, delay = conclude[rules[r]](keys[i], us, s[4], tonumber(rules[r + 4]),
        tonumber(rules[r + 5]), tonumber(rules[r + 6]), s[3], mode, wait, rules[r], charge, s[5], s[6], s[7], s[8], s[9])
    end
    out[o + 1], out[o + 2], out[o + 3], out[o + 4], out[o + 5] = s[1] and 1 or 0, remaining, s[2], reset, delay
  end
  if not all then out[1] = 0 end
  out[2] = unreadable
  return out
end
