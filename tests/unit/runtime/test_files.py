from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flexmarl.runtime import files
from flexmarl.runtime.files import mend, places_to_mend, put_in_place


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
