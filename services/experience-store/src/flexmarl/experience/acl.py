"""What the user of one job may do in the server: what the store needs, on its own keys. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from flexmarl.experience.keys import Keys

SCRIPTED = {
    "del": "KEY", "exists": "KEY", "get": "KEY", "hget": "KEY x", "hgetall": "KEY", "hlen": "KEY",
    "hset": "KEY x x", "incr": "KEY", "mget": "KEY", "persist": "KEY", "publish": "CHANNEL x",
    "rename": "KEY KEY", "sadd": "KEY x", "set": "KEY x", "sismember": "KEY x", "smembers": "KEY",
    "srem": "KEY x", "unlink": "KEY", "xadd": "KEY * x x",
    "xdel": "KEY 1-1", "xlen": "KEY", "xrange": "KEY - +", "zadd": "KEY 0 x", "zrange": "KEY 0 1",
    "zrangebylex": "KEY - +", "zrem": "KEY x",
}  # fmt: skip
"""Commands that may be sent or be inside a script, with arguments to ask for the right by."""
SENT = {
    "evalsha": "x 0", "exec": "", "info": "", "multi": "",
    "ping": "", "script|load": "x", "select": "0", "subscribe": "CHANNEL", "unsubscribe": "CHANNEL",
}  # fmt: skip
"""Commands that the service or its library sends and no script may contain.

Not `client|setinfo`, which the library tries and can do without: Redis 7.0 does not know it, and
refuses rules that name it.
"""
COMMANDS = tuple(sorted(SCRIPTED | SENT))


def acl_rules(tag: str) -> list[str]:
    """Rules for `ACL SETUSER NAME reset on >PASSWORD ...` of the job whose keys have this tag."""
    mine = _literal(Keys(tag).prefix) + "*"
    commands = (f"+{name}" for name in COMMANDS)
    return ["resetkeys", f"~{mine}", "resetchannels", f"&{mine}", "-@all", *commands]


def missing_rules(tag: str, lacking: Iterable[str]) -> list[str]:
    """The rules that grant what `scripts.RIGHTS` found lacking: commands, `keys`, `channels`."""
    mine = _literal(Keys(tag).prefix) + "*"
    known = {"keys": f"~{mine}", "channels": f"&{mine}"}
    return [known.get(name, f"+{name}") for name in lacking]


def questions() -> list[str]:
    """For `scripts.RIGHTS`: how many may be tried, those, and the others."""

    def lines(commands: dict[str, str]) -> list[str]:
        return [f"{name} {arguments}".strip() for name, arguments in commands.items()]

    return [str(len(SCRIPTED)), *lines(SCRIPTED), *lines(SENT)]


def _literal(text: str) -> str:
    """A pattern that only `text` matches."""
    return "".join(f"\\{letter}" if letter in r"*?[]\^-" else letter for letter in text)
