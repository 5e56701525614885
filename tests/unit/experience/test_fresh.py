from __future__ import annotations

from flexmarl.experience.fresh import Fresh


def test_data_is_taken_once_by_its_policy_and_name() -> None:
    fresh = Fresh()
    fresh.put("a", "1", b"one")
    assert fresh.take("b", "1") is None
    assert fresh.take("a", "1") == b"one"
    assert fresh.take("a", "1") is None


def test_the_oldest_go_when_there_is_too_much() -> None:
    fresh = Fresh(most=10)
    for number in range(5):
        fresh.put("a", str(number), b"1234")
    assert [fresh.take("a", str(number)) for number in range(5)] == [None] * 3 + [b"1234"] * 2
    fresh.put("a", "large", b"12345678901")
    assert fresh.take("a", "large") is None
    fresh.put("a", "fits", b"1234567890")
    fresh.put("a", "fits", b"0987654321")
    assert fresh.take("a", "fits") == b"0987654321"


def test_a_small_part_of_a_request_does_not_keep_the_rest_of_it() -> None:
    fresh, request = Fresh(), bytes(1000)
    fresh.put("a", "small", memoryview(request)[:100])
    fresh.put("a", "large", memoryview(request)[:900])
    assert isinstance(fresh.take("a", "small"), bytes)
    assert isinstance(fresh.take("a", "large"), memoryview)
