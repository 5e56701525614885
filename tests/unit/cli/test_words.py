import pytest

from flexmarl.cli.console import printable
from flexmarl.cli.words import NONE, amount, decimal, duration, percent


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (999.6, "1000"), (12345, "12.3k"), (620_000, "620k"), (1_234_567, "1.2M"),
     (2.5e9, "2.5G"), (None, NONE)],
)  # fmt: skip
def test_amounts_are_short(value: float | None, text: str) -> None:
    assert amount(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0.000"), (0.1234, "0.123"), (12.3456, "12.346"), (123.456, "123.5"), (1234.5, "1234"),
     (-0.5, "-0.500"), (0.00012, "1.20e-04"), (1e6, "1.00e+06"), (None, NONE)],
)  # fmt: skip
def test_decimals_say_something(value: float | None, text: str) -> None:
    assert decimal(value) == text


def test_absent_numbers_are_dashes() -> None:
    assert percent(None) == duration(None) == NONE
    assert percent(0.8444) == "84.4%"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (59.94, "59.9 s"), (75.2, "1:15"), (3723, "1:02:03")]
)
def test_durations_read_like_a_clock(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_nothing_printed_steers_the_terminal() -> None:
    assert printable("a\x1b[31m\tb\x9b\x00\r\nc\ud800") == "a\ufffd[31m    b\ufffd\ufffd\ufffd\nc?"
