-- Fixed window and sliding window counter: "index previous current".
local function window_judge(key, us, limit, window, burst, unit, cost, mode, wait, letter)
  local now, phase, previous, current = floor(us / unit), 0, 0, 0
  if letter == 'F' then
    -- Not all callers' windows end at once: the key's last six characters move the boundaries.
    local a, b, c, d, e, f = string.byte(key, -6, -1)
    phase = (((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f) % window
  end
  local index = floor((now + phase) / window)
  local into = now + phase - index * window
  local text = read(key)
  if text then
    local i, p, c = match(text, '^(%d+) (%d+) (%d+)$')
    i, p, c = tonumber(i), tonumber(p), tonumber(c)
    local start = i and i * window - phase
    if not i or start > EXACT or p > 1000000000 or c > 1000000000 then
      unreadable = unreadable + 1
    elseif (start - now) * unit > AHEAD then
      previous, current, moved = p, c, mode ~= 'P'
    elseif i > index then
      now, index, into, previous, current = start, i, 0, p, c
    elseif i == index then
      previous, current = p, c
    elseif i == index - 1 and letter == 'S' then
      previous = c
    end
  end
  if mode == 'R' or mode == 'S' then return true, 0, now, index, into, previous, current end
  if cost > limit then return false, -1, now, index, into, previous, current end
  if previous * (window - into) + (current + cost) * window <= limit * window then
    return true, 0, now, index, into, previous, current
  end
  local wait_units, room = window - into, limit - cost
  if letter == 'S' then
    if room >= current then wait_units = wait_units - floor((room - current) * window / previous)
    else wait_units = wait_units + window - floor(room * window / current) end
  end
  return false, (now + wait_units) * unit - us, now, index, into, previous, current
end

local function window_conclude(key, us, limit, window, burst, unit, cost, mode, wait, letter, charge,
                               now, index, into, previous, current)
  local p, c = previous, current
  local free = floor((limit * window - p * (window - into) - c * window) / window)
  if charge then
    if mode == 'C' then c = c + cost
    elseif mode == 'S' then c = c + max(0, min(cost, free))
    else
      p = max(0, p - max(0, cost - c))
      c = max(0, c - cost)
    end
  end
  local reset = (now + window - into) * unit - us
  if p ~= previous or c ~= current or moved then
    local life = reset
    if letter == 'S' and c > 0 then life = life + window * unit end
    write(key, p + c > 0 and format('%.0f %.0f %.0f', index, p, c), life)
    free = floor((limit * window - p * (window - into) - c * window) / window)
  end
  return max(0, free), reset, 0
end
