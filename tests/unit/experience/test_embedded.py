from __future__ import annotations

import pytest

from flexmarl.experience.embedded import quoted, server_config
from flexmarl.runtime.errors import InvalidJobError


def test_the_server_keeps_everything_in_memory_and_refuses_when_full() -> None:
    config = server_config("unix://:secret%20word@/run/job/store.sock", 64)
    assert config["requirepass"] == "secret word"
    assert config["unixsocket"] == "/run/job/store.sock"
    assert (config["port"], config["save"], config["appendonly"]) == ("0", "", "no")
    assert (config["maxmemory"], config["maxmemory-policy"]) == ("64mb", "noeviction")


@pytest.mark.parametrize("url", ["", "redis://localhost", "unix://store.sock", "file:///x"])
def test_any_other_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidJobError, match="FLEXMARL_STORE_URL"):
        server_config(url, 64)


def test_values_are_quoted_for_the_configuration() -> None:
    assert quoted('a"b\\c d') == '"a\\"b\\\\c d"'
