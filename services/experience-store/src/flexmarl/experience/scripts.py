"""The store's transactions, as scripts that run inside the server: whole or not at all.

Every script refuses who is older than the counter that fences it, and raises the counter when the
caller is newer: a server that lost its memory must not believe a process that was replaced long
ago. None is refused when the server is out of memory, and none touches a group's data, which a
script would copy: `APPEND` gives data that was sent before it the entry's name. So what finds no
memory is the data, and a script only says so.

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
local function data_key(stream, id) return stream .. ':' .. id end
"""

TAKE = """#!lua flags=allow-oom
-- KEYS: incarnation. The counter, one above the last.
return redis.call('INCR', KEYS[1])
"""

TAKE_EPOCH = f"""#!lua flags=allow-oom
-- KEYS: incarnation, epoch; ARGV: incarnation, channel
-- The epoch, one above the last; waiters of the old one look again.
{FENCE}
local current = fenced(KEYS[1], ARGV[1])
if current then return {{'fenced', current}} end
local taken = redis.call('INCR', KEYS[2])
redis.pcall('PUBLISH', ARGV[2], '')
return {{'ok', taken}}
"""

CHECK = f"""#!lua flags=allow-oom
-- KEYS: counter; ARGV: what the caller has of it
{FENCE}
local current = fenced(KEYS[1], ARGV[1])
if current then return {{'fenced', current}} end
return {{'ok'}}
"""

DROP = """
-- Deletes the entries of one step and policy and their data; how many there were.
local function drop(entries, stream)
  local names = redis.call('ZRANGE', entries, 0, -1)
  for _, name in ipairs(names) do
    local id = stream_id(name)
    redis.call('XDEL', stream, id)
    redis.call('UNLINK', data_key(stream, id))
  end
  redis.call('DEL', entries)
  return #names
end
"""

FORGET = """
-- Forgets the open steps that `chosen` says, what is `spared` of them not; how many entries of them
-- nobody had committed. Streams are KEYS[4] and on, their policies ARGV[4] and on.
local function forget(steps, prefix, chosen, spared)
  local purged = 0
  for _, open in ipairs(redis.call('SMEMBERS', steps)) do
    if chosen(tonumber(open)) then
      for i = 4, #ARGV do
        if not spared(ARGV[i], open) then
          purged = purged + drop(prefix .. 'entries:' .. ARGV[i] .. ':' .. open, KEYS[i])
        end
      end
      redis.call('DEL', prefix .. 'stored:' .. open, prefix .. 'notes:' .. open)
      redis.call('SREM', steps, open)
    end
  end
  return purged
end
"""

ROLL_BACK = f"""#!lua flags=allow-oom
-- KEYS: incarnation, closed, steps, stream of each policy
-- ARGV: incarnation, step, prefix of the job's keys, policies
-- Forgets this step and later ones; they are open again.
{FENCE}
{STREAM_ID}
{DROP}
{FORGET}
local current = fenced(KEYS[1], ARGV[1])
if current then return {{'fenced', current}} end
local step, prefix = tonumber(ARGV[2]), ARGV[3]
local function undone(open) return open >= step end
forget(KEYS[3], prefix, undone, function() return false end)
for i = 4, #ARGV do
  local kept = prefix .. 'kept:' .. ARGV[i]
  for _, one in ipairs(redis.call('SMEMBERS', kept)) do
    if undone(tonumber(one)) then
      drop(prefix .. 'entries:' .. ARGV[i] .. ':' .. one, KEYS[i])
      redis.call('SREM', kept, one)
    end
  end
end
local closed = redis.call('GET', KEYS[2])
if closed and tonumber(closed) >= step then
  if step == 0 then redis.call('DEL', KEYS[2]) else redis.call('SET', KEYS[2], step - 1) end
end
return {{'ok'}}
"""

APPEND = f"""#!lua flags=allow-oom
-- KEYS: incarnation, closed, steps, stored, notes, then staged data, stream and entries of each
-- policy
-- ARGV: incarnation, step, index, note, then of each policy: name, bytes, meta, status
-- Stored, with the length of each stream and the name of its entry, empty where there was one; or
-- unstaged, when data is missing, with the oldest step
-- that still has identities and how many there are of this one. Nothing stays staged.
{FENCE}
{STREAM_ID}
local function padded(id)
  local left, right = id:match('^(%d+)%-(%d+)$')
  return string.rep('0', 20 - #left) .. left .. '-' .. string.rep('0', 20 - #right) .. right
end
local function refused(...)
  for key = 6, #KEYS, 3 do redis.call('UNLINK', KEYS[key]) end
  return {{...}}
end

local current = fenced(KEYS[1], ARGV[1])
if current then return refused('fenced', current) end
local step, index = ARGV[2], ARGV[3]
local closed = redis.call('GET', KEYS[2])
if closed and tonumber(step) <= tonumber(closed) then return refused('duplicate') end
local lost = redis.call('HGET', KEYS[4], index)
if lost == '' then return refused('duplicate') end
for key = 6, #KEYS, 3 do
  if redis.call('EXISTS', KEYS[key]) == 0 then
    local oldest = tonumber(step)
    for _, open in ipairs(redis.call('SMEMBERS', KEYS[3])) do
      oldest = math.min(oldest, tonumber(open))
    end
    return refused('unstaged', oldest, redis.call('HLEN', KEYS[4]))
  end
end

local wanted = {{}}
if lost then
  for policy in lost:gmatch('%S+') do wanted[policy] = true end
end
local at, reply = 5, {{'stored'}}
for key = 6, #KEYS, 3 do
  local staged, stream, entries = KEYS[key], KEYS[key + 1], KEYS[key + 2]
  local policy, bytes, meta, status = unpack(ARGV, at, at + 3)
  local name = ''
  if not lost or wanted[policy] then
    local id = redis.call('XADD', stream, '*', 'meta', meta, 'status', status)
    redis.call('RENAME', staged, data_key(stream, id))
    redis.call('PERSIST', data_key(stream, id))
    name = padded(id) .. ':' .. bytes .. ':' .. index
    redis.call('ZADD', entries, 0, name)
  else
    redis.call('UNLINK', staged)
  end
  reply[#reply + 1] = redis.call('XLEN', stream)
  reply[#reply + 1] = name
  at = at + 4
end
redis.call('HSET', KEYS[4], index, '')
-- Of a group that comes again the first note stays: it may have been told already.
if ARGV[4] ~= '' and not lost then redis.call('HSET', KEYS[5], index, ARGV[4]) end
redis.call('SADD', KEYS[3], step)
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
-- KEYS: epoch, stream, kept; ARGV: epoch, step, steps to keep, start of the names of its entries
-- How many entries went, how many are left.
{FENCE}
{STREAM_ID}
{DROP}
local current = fenced(KEYS[1], ARGV[1])
if current then return {{'fenced', current}} end
local step, keep, entries, gone = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], 0
if keep == 0 then
  gone = drop(entries .. ARGV[2], KEYS[2])
elseif redis.call('EXISTS', entries .. ARGV[2]) == 1 then
  redis.call('SADD', KEYS[3], ARGV[2])
end
for _, one in ipairs(redis.call('SMEMBERS', KEYS[3])) do
  if tonumber(one) <= step - keep then
    gone = gone + drop(entries .. one, KEYS[2])
    redis.call('SREM', KEYS[3], one)
  end
end
return {{'ok', gone, redis.call('XLEN', KEYS[2])}}
"""

DISCARD = f"""#!lua flags=allow-oom
-- KEYS: entries, stored, stream, dead; ARGV: name, index, policy, most, n, n fields and values.
-- Moves one entry to the dead letters and has its index issued again for this policy alone: what
-- the other policies hold of the group may be trained already. 0: the entry went another way.
{STREAM_ID}
local name, index, policy = ARGV[1], ARGV[2], ARGV[3]
if redis.call('ZREM', KEYS[1], name) == 0 then return 0 end
local id = stream_id(name)
redis.call('XDEL', KEYS[3], id)
redis.call('UNLINK', data_key(KEYS[3], id))
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
-- Forgets this step and any earlier one, but what is kept for replay. How many entries nobody had
-- committed.
{FENCE}
{STREAM_ID}
{DROP}
{FORGET}
local current = fenced(KEYS[1], ARGV[1])
if current then return {{'fenced', current}} end
local step = tonumber(ARGV[2])
local closed = redis.call('GET', KEYS[2])
if not closed or step > tonumber(closed) then redis.call('SET', KEYS[2], ARGV[2]) end
local function kept(policy, open)
  return redis.call('SISMEMBER', ARGV[3] .. 'kept:' .. policy, open) == 1
end
return {{'ok', forget(KEYS[3], ARGV[3], function(open) return open <= step end, kept)}}
"""

PUT_STATE = f"""#!lua flags=allow-oom
-- KEYS: incarnation, state; ARGV: incarnation, fields and values
{FENCE}
local current = fenced(KEYS[1], ARGV[1])
if current then return {{'fenced', current}} end
if #ARGV > 1 then redis.call('HSET', KEYS[2], unpack(ARGV, 2)) end
return {{'ok'}}
"""

RIGHTS = """#!lua flags=no-writes,allow-oom
-- ARGV: key, channel, n, n commands to be tried, commands to be asked for. What this user may not
-- do. Tried is what a script may contain, because the refusal then says what is missing; a script
-- that may not write refuses those that would, after their rights. All arguments are as they should
-- be: asked for a command without its arguments, servers have crashed.
local lacking, said = {}, {}
local function lacks(what)
  if not said[what] then lacking[#lacking + 1] = what end
  said[what] = true
end
for i = 4, #ARGV do
  local words = {}
  for word in ARGV[i]:gmatch('[^ |]+') do
    words[#words + 1] = word == 'KEY' and ARGV[1] or word == 'CHANNEL' and ARGV[2] or word
  end
  local name = ARGV[i]:match('^%S+')
  if i > 3 + ARGV[3] then
    local shut_out = said.channels and name:find('subscribe')
    if not shut_out and not redis.acl_check_cmd(unpack(words)) then lacks(name) end
  else
    local reply = redis.pcall(unpack(words))
    local refusal = type(reply) == 'table' and reply.err or ''
    if refusal:find('ermission') or refusal:find('The user executing') then
      if refusal:find(' run ') then lacks(name)
      elseif refusal:find('channel') then lacks('channels')
      else lacks('keys') end
    end
  end
end
return lacking
"""


def refuse_fenced(what: str, given: int, outcome: bytes | str, rest: list[Any]) -> None:
    """FencedError when a script's reply, `outcome` and `rest`, says that `given` is over."""
    if outcome in (b"fenced", "fenced"):
        raise FencedError(f"{what} {given} is over, {rest[0]} has taken over")
