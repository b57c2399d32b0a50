-- Sliding window log: eight bytes, big-endian, for the time of each admitted cost unit, oldest first.
local function log_judge(key, us, limit, window, burst, unit, cost, mode, wait, letter)
  local now, times, count = floor(us / unit), '', 0
  local text = read(key)
  if text then
    local total = #text / 8
    local newest = total % 1 == 0 and total >= 1 and total <= 1000 and struct.unpack('>I8', text, #text - 7)
    if not newest or newest > EXACT then
      unreadable = unreadable + 1
    else
      if (newest - now) * unit > AHEAD then
        local shifted = {}
        for i = 1, total do
          local time = struct.unpack('>I8', text, i * 8 - 7) - (newest - now)
          shifted[i] = struct.pack('>I8', max(0, min(now, time)))
        end
        text, newest, moved = table.concat(shifted), now, mode ~= 'P'
      end
      now = max(now, newest)
      local low, high = 0, total
      while low < high do
        local middle = floor((low + high) / 2)
        if struct.unpack('>I8', text, middle * 8 + 1) + window > now then high = middle else low = middle + 1 end
      end
      times, count = sub(text, low * 8 + 1), total - low
    end
  end
  if mode == 'R' or mode == 'S' then return true, 0, now, times, count end
  if cost > limit then return false, -1, now, times, count end
  local surplus = count + cost - limit
  if surplus <= 0 then return true, 0, now, times, count end
  -- Room comes when the last of the surplus leaves.
  local leaves = struct.unpack('>I8', times, (surplus - 1) * 8 + 1) + window
  return false, leaves * unit - us, now, times, count
end

local function log_conclude(key, us, limit, window, burst, unit, cost, mode, wait, letter, charge, now, times, count)
  local newest = count > 0 and struct.unpack('>I8', times, #times - 7)
  local before = count
  if charge then
    if mode == 'R' then
      -- The oldest: what stays then leaves no sooner than it should.
      times, count = sub(times, cost * 8 + 1), max(0, count - cost)
    else
      local add = mode == 'C' and cost or max(0, min(cost, limit - count))
      if add > 0 then times, newest = times .. string.rep(struct.pack('>I8', now), add), now end
      count = count + add
    end
  end
  if count ~= before or moved then
    write(key, count > 0 and times, count > 0 and (newest + window) * unit - us)
  end
  return max(0, limit - count), count > 0 and (newest + window) * unit - us or 0, 0
end
