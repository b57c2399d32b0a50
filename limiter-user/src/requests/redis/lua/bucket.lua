-- Token and leaky bucket: "last level". The level is in cost x window and drains by limit per unit.
local function bucket_judge(key, us, limit, window, burst, unit, cost, mode, wait, letter)
  local now, level = floor(us / unit), 0
  local text = read(key)
  if text then
    local last, stored = match(text, '^(%d+) (%d+)$')
    last, stored = tonumber(last), tonumber(stored)
    if not last or last > EXACT or stored > EXACT then
      unreadable = unreadable + 1
    elseif (last - now) * unit > AHEAD then
      level, moved = min(stored, burst * window), mode ~= 'P'
    else
      local drained = max(0, now - last) * limit
      if drained < stored then level = min(stored - drained, burst * window) end
      now = max(now, last)
    end
  end
  if mode == 'R' or mode == 'S' then return true, 0, now, level end
  if cost > burst then return false, -1, now, level end
  local room = burst * window - cost * window
  if letter == 'Q' and not wait then room = 0 end
  if level <= room then return true, 0, now, level end
  return false, (now + ceil((level - room) / limit)) * unit - us, now, level
end

local function bucket_conclude(key, us, limit, window, burst, unit, cost, mode, wait, letter, charge, now, before)
  local level = before
  if charge then
    if mode == 'C' then level = before + cost * window
    elseif mode == 'S' then level = before + min(cost, floor((burst * window - before) / window)) * window
    else level = max(0, before - cost * window) end
  end
  local reset = level > 0 and (now + ceil(level / limit)) * unit - us or 0
  if level ~= before or moved then write(key, level > 0 and format('%.0f %.0f', now, level), reset) end
  local queue = letter == 'Q'
  local delay = queue and charge and mode == 'C' and before > 0 and (now + ceil(before / limit)) * unit - us or 0
  if queue and not wait and level > 0 then return 0, reset, delay end
  return floor((burst * window - level) / window), reset, delay
end
