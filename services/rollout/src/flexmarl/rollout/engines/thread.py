"""One thread that owns an engine's state: it works, and between two pieces of work runs calls."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class WorkThread(Executor):
    """An executor whose thread calls `work` in between.

    `work` is called after the first submitted call; it returns the seconds after which it wants to
    be called again, or None to sleep until the next submitted call. When it raises, `failed` gets
    the error and the thread ends: later calls are cancelled.
    """

    def __init__(
        self, name: str, work: Callable[[], float | None], failed: Callable[[Exception], None]
    ) -> None:
        self._work = work
        self._failed = failed
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._wake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `fn` in the thread, in the order of submission."""
        future: Future[T] = Future()
        with self._wake:
            if self._closed:
                future.cancel()
                return future
            self._calls.append((future, lambda: fn(*args, **kwargs)))
            self._wake.notify()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the thread after the piece of work it is at; calls not yet run are cancelled."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        if wait:
            self._thread.join()

    def _run(self) -> None:
        pause: float | None = None
        while True:
            calls = self._next(pause)
            if calls is None:
                return
            for future, call in calls:
                _settle(future, call)
            try:
                pause = self._work()
            except Exception as error:
                self._close()
                self._failed(error)
                return

    def _next(self, pause: float | None) -> list[tuple[Future[Any], Callable[[], Any]]] | None:
        """Submitted calls, after at most `pause` seconds; None when the thread shall end."""
        with self._wake:
            if not self._calls and not self._closed and pause != 0:
                self._wake.wait(pause)
            if not self._closed:
                calls = list(self._calls)
                self._calls.clear()
                return calls
        self._close()
        return None

    def _close(self) -> None:
        with self._wake:
            self._closed = True
            calls = list(self._calls)
            self._calls.clear()
        for future, _ in calls:
            future.cancel()


def _settle(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except Exception as error:  # the caller gets it from the future
        future.set_exception(error)
    else:
        future.set_result(result)
