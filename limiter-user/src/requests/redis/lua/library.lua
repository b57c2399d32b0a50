-- The inside of `start`, and what any client asks: FCALL <ns>_check N key1 ... keyN endpoint plan cost [wait]
local function whole(text)
  local number = match(text or '', '^%d+$') and tonumber(text)
  return number and number <= 1000000000 and number
end

local function ask(keys, args, mode)
  local endpoint = endpoints[args[1]]
  if not endpoint then return {err = 'LIMITER no endpoint ' .. tostring(args[1]) .. ' in this policy'} end
  local cost = whole(args[3])
  if not cost then return {err = 'LIMITER the cost is a whole number from 0 to 1000000000'} end
  local limits = args[2] == 'deny' and endpoint.deny or endpoint.plans[args[2]] or endpoint.default
  if #keys ~= #limits.ids then
    return {err = format('LIMITER this endpoint has %d limits, and %d keys were given', #limits.ids, #keys)}
  end
  for i = 1, #keys do
    if not (sub(keys[i], 1, #prefix) == prefix and string.find(keys[i], limits.ids[i], #prefix, true)) then
      return {err = 'LIMITER key ' .. i .. ' is not one of ' .. limits.ids[i]}
    end
  end
  return decide(keys, mode, args[4] == 'wait', limits.rules, 1, cost)
end

return ask
end

local ask
local function answer(keys, args, mode)
  ask = ask or start()
  return ask(keys, args, mode)
end

redis.register_function(namespace .. '_check', function(keys, args) return answer(keys, args, 'C') end)
redis.register_function{
  function_name = namespace .. '_peek',
  callback = function(keys, args) return answer(keys, args, 'P') end,
  flags = {'no-writes'},
}
redis.register_function{
  function_name = namespace .. '_policy',
  callback = function() return policy end,
  flags = {'no-writes'},
}
