from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flexmarl.runtime import files
from flexmarl.runtime.files import LEFT_SECONDS, mend, places_to_mend, put_in_place, replace, sweep


class CrashError(Exception):
    pass


def directory(path: Path, content: str) -> Path:
    path.mkdir()
    for name in ("one", "two"):
        (path / name).write_text(content)
    return path


def content(path: Path) -> set[str]:
    """Of a whole directory."""
    assert sorted(entry.name for entry in path.iterdir()) == ["one", "two"]
    return {entry.read_text() for entry in path.iterdir()}


@pytest.fixture(params=[True, False], ids=["exchange", "no exchange"])
def exchanging(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if not request.param:
        monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    return bool(request.param)


@pytest.mark.usefixtures("exchanging")
def test_the_new_directory_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    for version in ("first", "second", "third"):
        put_in_place(directory(tmp_path / "made", version), tmp_path / "place")
        assert content(tmp_path / "place") == {version}
        assert [path.name for path in tmp_path.iterdir()] == ["place"]


@pytest.mark.parametrize("survived", range(6))
def test_a_crash_at_any_moment_leaves_one_whole_directory(
    tmp_path: Path, exchanging: bool, survived: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes before the call number `survived` that changes something, or in a removal."""
    place = directory(tmp_path / "place", "old")
    made = directory(tmp_path / "made", "new")
    calls = 0

    def mortal(call: Callable[..., Any], torn: bool = False) -> Callable[..., Any]:
        def one(*arguments: Any, **more: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > survived:
                raise CrashError
            if torn and calls == survived and Path(arguments[0]).exists():
                (Path(arguments[0]) / "one").unlink()
                raise CrashError
            return call(*arguments, **more)

        return one

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", mortal(Path.rename))
        patch.setattr(shutil, "rmtree", mortal(shutil.rmtree, torn=True))
        patch.setattr(files, "_exchange", mortal(files._exchange))
        try:
            put_in_place(made, place)
        except CrashError:
            pass
        else:
            assert survived > 3 - exchanging
    for name in places_to_mend(tmp_path):
        mend(name)
    assert content(place) in ({"old"}, {"new"})
    assert not list(tmp_path.glob(".*.old"))


def test_there_is_nothing_to_mend_where_nothing_was_cut_off(tmp_path: Path) -> None:
    mend(directory(tmp_path / "place", "old"))
    assert content(tmp_path / "place") == {"old"}
    mend(tmp_path / "none")
    assert places_to_mend(tmp_path) == []


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_that_several_write_at_the_same_time_is_always_that_of_one(
    tmp_path: Path, durable: bool
) -> None:
    """As two orchestrators do while one does not know yet that it was replaced."""
    path, texts = tmp_path / "progress.json", [f"{number}" * 5000 for number in range(4)]
    replace(path, texts[0])
    failed, done = list[BaseException](), threading.Event()

    def write(text: str) -> None:
        try:
            for _ in range(50):
                replace(path, text, durable=durable)
        except BaseException as error:
            failed.append(error)

    def read() -> None:
        while not done.is_set():
            if path.read_text() not in texts:
                failed.append(AssertionError("torn"))

    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=write, args=(text,)) for text in texts]
    reader.start()
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    done.set()
    reader.join()
    assert failed == []
    assert [each.name for each in tmp_path.iterdir()] == ["progress.json"]


def test_what_killed_writers_left_goes_and_what_is_being_written_stays(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    replace(path, "{}")
    old, new, other = (
        tmp_path / name
        for name in (".progress.json.1.partial", ".progress.json.2.partial", ".other.1.partial")
    )
    for each in (old, new, other):
        each.touch()
    for each in (old, other):
        os.utime(each, (0, each.stat().st_mtime - LEFT_SECONDS - 1))
    sweep(path)
    assert sorted(tmp_path.iterdir()) == sorted((path, new, other))


def test_a_text_that_cannot_be_written_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    replace(path, "old")
    with pytest.raises(UnicodeEncodeError):
        replace(path, "\ud800")
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["progress.json"]
