from __future__ import annotations

import pytest

from flexmarl.experience.embedded import quoted, server_config
from flexmarl.runtime.errors import InvalidJobError


def test_the_server_logs_what_it_holds_and_refuses_when_full() -> None:
    config = server_config("unix://:secret%20word@/run/job/store.sock", "job", 64)
    assert {
        ("requirepass", "secret word"),
        ("port", "0"),
        ("unixsocket", "/run/job/store.sock"),
        ("dir", "/run/job"),
        ("save", ""),
        ("appendonly", "yes"),
        ("appendfsync", "no"),
        ("maxmemory", "64mb"),
        ("maxmemory-policy", "noeviction"),
        ("auto-aof-rewrite-min-size", "64mb"),
        ("rdbcompression", "no"),
    } <= set(config)


def test_a_named_user_is_the_only_one_and_its_password_is_not_written_down() -> None:
    config = server_config("unix://me:secret@/run/job/store.sock", "a/b/c", 64)
    users = [words for words in config if words[0] == "user"]
    assert users[0][:3] == ("user", "me", "on")
    assert users[0][4:8] == ("resetkeys", "~{a/b/c}:*", "resetchannels", "&{a/b/c}:*")
    assert users[1] == ("user", "default", "off")
    assert not any(words[0] == "requirepass" for words in config)
    assert "secret" not in str(config)


@pytest.mark.parametrize("url", ["", "redis://localhost", "unix://store.sock", "file:///x"])
def test_any_other_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidJobError, match="FLEXMARL_STORE_URL"):
        server_config(url, "job", 64)


def test_values_are_quoted_for_the_configuration() -> None:
    assert quoted('a"b\\c d') == '"a\\"b\\\\c d"'
