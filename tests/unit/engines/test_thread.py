"""The engine's thread: calls in order, work in between, errors told."""

import threading
from concurrent.futures import CancelledError

import pytest

from flexmarl.rollout.engines.thread import WorkThread


def quiet() -> float | None:
    return None


def test_calls_run_in_order_in_one_thread() -> None:
    thread = WorkThread("test", quiet, lambda _: None)
    seen: list[tuple[int, str]] = []
    futures = [
        thread.submit(lambda n: seen.append((n, threading.current_thread().name)), n)
        for n in range(50)
    ]
    for future in futures:
        future.result(10)
    assert seen == [(n, "test") for n in range(50)]
    thread.shutdown()


def test_an_error_of_a_call_reaches_its_caller_and_the_thread_goes_on() -> None:
    thread = WorkThread("test", quiet, lambda _: None)
    with pytest.raises(ZeroDivisionError):
        thread.submit(lambda: 1 // 0).result(10)
    assert thread.submit(lambda: 1).result(10) == 1
    thread.shutdown()


def test_work_is_repeated_until_it_asks_to_sleep() -> None:
    left, done = [5], threading.Event()

    def work() -> float | None:
        if left[0] == 0:
            done.set()
            return None
        left[0] -= 1
        return 0.0 if left[0] % 2 else 0.001

    thread = WorkThread("test", work, lambda _: None)
    thread.submit(lambda: None)
    assert done.wait(10)
    thread.shutdown()


def test_an_error_of_the_work_ends_the_thread_and_cancels_later_calls() -> None:
    told: list[Exception] = []
    ended = threading.Event()

    def failed(error: Exception) -> None:
        told.append(error)
        ended.set()

    thread = WorkThread("test", lambda: 1 / 0, failed)
    thread.submit(lambda: None)
    assert ended.wait(10)
    assert isinstance(told[0], ZeroDivisionError)
    with pytest.raises(CancelledError):
        thread.submit(lambda: None).result(10)
    thread.shutdown()
