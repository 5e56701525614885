from __future__ import annotations

import pytest

from flexmarl.experience.acl import COMMANDS, acl_rules, missing_rules
from flexmarl.runtime.errors import InvalidJobError


def test_a_job_reaches_its_own_keys_and_channel_and_no_other_command() -> None:
    rules = acl_rules("default/job/1")
    assert rules[:5] == [
        "resetkeys", "~{default/job/1}:*", "resetchannels", "&{default/job/1}:*", "-@all"
    ]  # fmt: skip
    assert rules[5:] == [f"+{command}" for command in COMMANDS]
    dangerous = {"keys", "flushall", "config", "acl", "eval", "script", "debug", "@all"}
    assert not dangerous & {rule.lstrip("+") for rule in rules[5:]}


def test_a_uid_is_no_pattern() -> None:
    assert r"~{a\*b\[c\]\?}:*" in acl_rules("a*b[c]?")
    with pytest.raises(InvalidJobError):
        acl_rules("a{b")


def test_what_is_missing_is_said_as_the_rules_that_grant_it() -> None:
    assert missing_rules("u", ["xadd", "script|load", "keys", "channels"]) == [
        "+xadd", "+script|load", "~{u}:*", "&{u}:*"
    ]  # fmt: skip
