"""What is said of a store's URL that cannot be read holds nothing of its password."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexmarl.experience.connection import connect
from flexmarl.experience.embedded import server_config
from flexmarl.experience.shared import administrator
from flexmarl.runtime.errors import InvalidJobError

ODD = st.text(st.sampled_from(list("aA/@:#?%[] \nü℀")), max_size=6)
READERS: dict[str, Callable[[str], object]] = {
    "connect": connect,
    "administrator": administrator,
    "server_config": lambda url: server_config(url, "job", 64),
}


@pytest.mark.parametrize("reader", READERS)
@given(scheme=st.sampled_from(["redis", "unix", "http", ""]), before=ODD, behind=ODD)
def test_a_url_is_read_or_refused_without_its_password(
    reader: str, scheme: str, before: str, behind: str
) -> None:
    said = ""
    try:
        READERS[reader](f"{scheme}://me:{before}Pa55word{behind}@host:6379/0")
    except InvalidJobError as error:
        said = str(error)
    assert "pa55word" not in said.lower()
