"""The store's transactions, as scripts that run inside the server: whole or not at all.

Every script refuses who is older than the counter that fences it, and raises the counter when the
caller is newer: a server that lost its memory must not believe a process that was replaced long
ago. Only `APPEND` is refused when the server is out of memory; what frees memory, or is needed to
get there, is not. None of them touches a payload except `APPEND`, which writes it.

An entry is named `{milliseconds}-{number}:{bytes}:{index}`, both counters padded with zeros, so
that names sort as the stream does.
"""

from __future__ import annotations

from typing import Any

from flexmarl.runtime.errors import FencedError

FENCE = """
local function fenced(key, given)
  local current = tonumber(redis.call('GET', key) or '0')
  if tonumber(given) < current then return current end
  if tonumber(given) > current then redis.call('SET', key, given) end
  return nil
end
"""

STREAM_ID = """
local function stream_id(name)
  local left, right = name:match('^0*(%d+)%-0*(%d+):')
  return left .. '-' .. right
end
"""

TAKE = """#!lua flags=allow-oom
-- KEYS: counter; ARGV: channel. The counter, one above the last; waiters of the old one look again.
local taken = redis.call('INCR', KEYS[1])
redis.pcall('PUBLISH', ARGV[1], '')
return taken
"""

FORGET = """
-- Forgets the open steps that `chosen` says; how many entries of them nobody had committed.
-- Streams are KEYS[4] and on, their policies ARGV[4] and on.
local function forget(steps, prefix, chosen)
  local purged = 0
  for _, open in ipairs(redis.call('SMEMBERS', steps)) do
    if chosen(tonumber(open)) then
      for i = 4, #ARGV do
        local entries = prefix .. 'entries:' .. ARGV[i] .. ':' .. open
        for _, name in ipairs(redis.call('ZRANGE', entries, 0, -1)) do
          redis.call('XDEL', KEYS[i], stream_id(name))
          purged = purged + 1
        end
        redis.call('DEL', entries)
      end
      redis.call('DEL', prefix .. 'stored:' .. open)
      redis.call('SREM', steps, open)
    end
  end
  return purged
end
"""

ROLL_BACK = f"""#!lua flags=allow-oom
-- KEYS: incarnation, closed, steps, stream of each policy
-- ARGV: channel, step, prefix of the job's keys, policies
-- A new incarnation that knows nothing of this step and later ones.
{STREAM_ID}
{FORGET}
local step = tonumber(ARGV[2])
forget(KEYS[3], ARGV[3], function(open) return open >= step end)
local closed = redis.call('GET', KEYS[2])
if closed and tonumber(closed) >= step then
  if step == 0 then redis.call('DEL', KEYS[2]) else redis.call('SET', KEYS[2], step - 1) end
end
local taken = redis.call('INCR', KEYS[1])
redis.pcall('PUBLISH', ARGV[1], '')
return taken
"""

APPEND = f"""#!lua
-- KEYS: incarnation, closed, steps, stored, then stream and entries of each policy
-- ARGV: incarnation, step, index, channel, then of each policy: name, bytes, n, n fields and values
{FENCE}
local function padded(id)
  local left, right = id:match('^(%d+)%-(%d+)$')
  return string.rep('0', 20 - #left) .. left .. '-' .. string.rep('0', 20 - #right) .. right
end

local current = fenced(KEYS[1], ARGV[1])
if current then return {{'fenced', current}} end
local step, index = ARGV[2], ARGV[3]
local closed = redis.call('GET', KEYS[2])
if closed and tonumber(step) <= tonumber(closed) then return {{'duplicate'}} end
local lost = redis.call('HGET', KEYS[4], index)
if lost == '' then return {{'duplicate'}} end

local wanted = {{}}
if lost then
  for policy in lost:gmatch('%S+') do wanted[policy] = true end
end
local at, reply = 5, {{'stored'}}
for key = 5, #KEYS, 2 do
  local policy, bytes, n = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  if not lost or wanted[policy] then
    local id = redis.call('XADD', KEYS[key], '*', unpack(ARGV, at + 3, at + 2 + n))
    redis.call('ZADD', KEYS[key + 1], 0, padded(id) .. ':' .. bytes .. ':' .. index)
  end
  reply[#reply + 1] = redis.call('XLEN', KEYS[key])
  at = at + 3 + n
end
redis.call('HSET', KEYS[4], index, '')
redis.call('SADD', KEYS[3], step)
redis.pcall('PUBLISH', ARGV[4], '')
return reply
"""

LOCATE = f"""#!lua flags=allow-oom
-- KEYS: epoch, entries; ARGV: epoch, lower bound, limit. Names of the entries after the bound.
{FENCE}
local current = fenced(KEYS[1], ARGV[1])
if current then return {{'fenced', current}} end
return {{'ok', redis.call('ZRANGEBYLEX', KEYS[2], ARGV[2], '+', 'LIMIT', 0, ARGV[3])}}
"""

COMMIT = f"""#!lua flags=allow-oom
-- KEYS: epoch, entries, stream; ARGV: epoch. How many entries went, how many are left.
{FENCE}
{STREAM_ID}
local current = fenced(KEYS[1], ARGV[1])
if current then return {{'fenced', current}} end
local names = redis.call('ZRANGE', KEYS[2], 0, -1)
for _, name in ipairs(names) do redis.call('XDEL', KEYS[3], stream_id(name)) end
redis.call('DEL', KEYS[2])
return {{'ok', #names, redis.call('XLEN', KEYS[3])}}
"""

DISCARD = f"""#!lua flags=allow-oom
-- KEYS: entries, stored, stream, dead; ARGV: name, index, policy, most, n, n fields and values.
-- Moves one entry to the dead letters and has its index issued again for this policy alone: what
-- the other policies hold of the group may be trained already. 0: the entry went another way.
{STREAM_ID}
local name, index, policy = ARGV[1], ARGV[2], ARGV[3]
if redis.call('ZREM', KEYS[1], name) == 0 then return 0 end
redis.call('XDEL', KEYS[3], stream_id(name))
local lost = redis.call('HGET', KEYS[2], index)
if lost then
  redis.call('HSET', KEYS[2], index, lost == '' and policy or lost .. ' ' .. policy)
end
redis.call('XADD', KEYS[4], 'MAXLEN', ARGV[4], '*', unpack(ARGV, 6, 5 + ARGV[5]))
return 1
"""

CLOSE = f"""#!lua flags=allow-oom
-- KEYS: incarnation, closed, steps, stream of each policy
-- ARGV: incarnation, step, prefix of the job's keys, policies
-- Forgets this step and any earlier one. How many entries nobody had committed.
{FENCE}
{STREAM_ID}
{FORGET}
local current = fenced(KEYS[1], ARGV[1])
if current then return {{'fenced', current}} end
local step = tonumber(ARGV[2])
local closed = redis.call('GET', KEYS[2])
if not closed or step > tonumber(closed) then redis.call('SET', KEYS[2], ARGV[2]) end
return {{'ok', forget(KEYS[3], ARGV[3], function(open) return open <= step end)}}
"""

PUT_STATE = f"""#!lua flags=allow-oom
-- KEYS: incarnation, state; ARGV: incarnation, fields and values
{FENCE}
local current = fenced(KEYS[1], ARGV[1])
if current then return {{'fenced', current}} end
if #ARGV > 1 then redis.call('HSET', KEYS[2], unpack(ARGV, 2)) end
return {{'ok'}}
"""


def refuse_fenced(what: str, given: int, outcome: bytes, rest: list[Any]) -> None:
    """FencedError when a script's reply, `outcome` and `rest`, says that `given` is over."""
    if outcome == b"fenced":
        raise FencedError(f"{what} {given} is over, {rest[0]} has taken over")
