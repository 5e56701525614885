from __future__ import annotations

from flexmarl.experience.fresh import Fresh, Kept


def test_data_is_taken_once_by_its_policy_and_name() -> None:
    fresh = Fresh()
    fresh.put("a", 7, "1", Kept(b"one"))
    assert fresh.take("b", 7, "1") is None
    assert fresh.take("a", 7, "1") == Kept(b"one")
    assert fresh.take("a", 7, "1") is None


def test_the_oldest_go_when_there_is_too_much() -> None:
    fresh = Fresh(most=10)
    for number in range(5):
        fresh.put("a", 7, str(number), Kept(b"1234"))
    taken = [fresh.take("a", 7, str(number)) for number in range(5)]
    assert taken == [None] * 3 + [Kept(b"1234")] * 2
    fresh.put("a", 7, "large", Kept(b"12345678901"))
    assert fresh.take("a", 7, "large") is None
    fresh.put("a", 7, "fits", Kept(b"1234567890"))
    fresh.put("a", 7, "fits", Kept(b"0987654321"))
    assert fresh.take("a", 7, "fits") == Kept(b"0987654321")


def test_a_small_part_of_a_request_does_not_keep_the_rest_of_it() -> None:
    fresh, request = Fresh(), bytes(1000)
    for name, size, kind in (("small", 100, bytes), ("large", 900, memoryview)):
        fresh.put("a", 7, name, Kept(memoryview(request)[:size]))
        kept = fresh.take("a", 7, name)
        assert kept is not None
        assert isinstance(kept.data, kind)


def test_groups_are_counted_by_policy_and_step() -> None:
    fresh = Fresh(most=10)
    for number, step in enumerate((7, 7, 8)):
        fresh.put("a", step, str(number), Kept(b"123"))
    assert [fresh.count(*of) for of in (("a", 7), ("a", 8), ("b", 7))] == [2, 1, 0]
    fresh.put("a", 8, "3", Kept(b"1234"))  # one too much
    fresh.take("a", 7, "1")
    assert [fresh.count("a", step) for step in (7, 8)] == [0, 2]
