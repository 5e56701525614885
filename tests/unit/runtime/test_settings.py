"""Addresses as manifests put them together."""

import pytest

from flexmarl.runtime.settings import with_brackets


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("fd00::5:7071", "[fd00::5]:7071"),
        ("[fd00::5]:7071", "[fd00::5]:7071"),
        ("10.0.0.5:7071", "10.0.0.5:7071"),
        ("weights.team.svc:7071", "weights.team.svc:7071"),
        ("unix:///run/a:b.sock", "unix:///run/a:b.sock"),
        ("", ""),
    ],
)
def test_an_address_of_either_family_is_one_that_can_be_reached(given: str, meant: str) -> None:
    assert with_brackets(given) == meant
