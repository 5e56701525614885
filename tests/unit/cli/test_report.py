import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cli.odd import ODD_LINES
from tests.unit.cli.runs import episode, lines, metric, write_run

from flexmarl.cli.report.page import render, write_report
from flexmarl.cli.report.plots import Series, before_after, line_chart, stacked_bars, thin
from flexmarl.cli.report.scales import label, round_range, step_marks
from flexmarl.cli.rundata import RunData
from flexmarl.contracts.reading import load_job

VOID = {"meta", "line", "rect", "circle", "polyline", "i"}


class Nesting(HTMLParser):
    """Fails on a tag that closes what is not open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed(html: str) -> Nesting:
    parser = Nesting()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    return parser


def test_a_report_is_one_file_with_plots_results_and_episodes(tmp_path: Path) -> None:
    root = write_run(tmp_path / "digits")
    path = write_report(RunData(root), load_job(root / "job.yaml"))
    html = path.read_text()
    found = parsed(html)
    assert found.links == []
    assert "script" not in found.tags
    assert not re.search(r"url\(|@import|https?://", html)
    for text in ("digits", "Complete", "Held-out accuracy", "Reward", "Loss", "Gradient norm",
                 "Time per step", "Speed", "37.5%", "90.0%", "At first", "At last"):  # fmt: skip
        assert text in html
    assert html.count('class="card episode"') == 4
    assert "prefers-color-scheme:dark" in html


def test_staleness_and_dropped_groups_have_charts_where_there_are_any(tmp_path: Path) -> None:
    root = write_run(tmp_path / "digits")
    run = RunData(root)
    run.refresh(episodes=True)
    assert "Staleness" not in render(run, None)
    seen = [
        metric(step, staleness={"trained": step, "queued": 0, "in_flight": 1}, counts=counts)
        for step, counts in enumerate([{}, {"groups-dropped": 3}])
    ]
    (root / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in seen))
    run = RunData(root)
    run.refresh(episodes=True)
    html = render(run, None)
    parsed(html)
    assert "Staleness" in html
    assert "Dropped by the filter" in html


def test_what_agents_wrote_is_escaped(tmp_path: Path) -> None:
    root = write_run(tmp_path / "digits")
    evil = "<script>alert(1)</script><img src=x>\x1b[31m"
    line = episode(0, 0, evil)
    line["task"] = {evil: evil}
    line["agents"] = {evil: 1.0}
    line["outcome"] = line["task_id"] = evil
    line["turns"][0].update(agent=evil, finish_reason=evil)
    line["turns"][0]["messages"] = [{"role": evil, "content": evil}]
    (root / "episodes.jsonl").write_text(lines([line]))
    html = write_report(RunData(root), None).read_text()
    assert {"script", "img"} & parsed(html).tags == set()
    assert "\x1b" not in html
    assert "&lt;script&gt;" in html


def test_a_run_without_a_step_has_a_report_that_says_so(tmp_path: Path) -> None:
    html = write_report(RunData(tmp_path), None).read_text()
    parsed(html)
    assert "No step is finished yet." in html


def test_a_failed_run_says_why(tmp_path: Path) -> None:
    root = write_run(tmp_path / "digits", phase="Failed")
    value = json.loads((root / "progress.json").read_text()) | {"message": "engine <died>"}
    (root / "progress.json").write_text(json.dumps(value))
    assert "engine &lt;died&gt;" in write_report(RunData(root), None).read_text()


@given(st.lists(ODD_LINES, max_size=4))
def test_no_content_is_too_odd_for_a_report(
    tmp_path_factory: pytest.TempPathFactory, values: list[object]
) -> None:
    root = tmp_path_factory.mktemp("run")
    for name in ("metrics.jsonl", "evals.jsonl", "episodes.jsonl"):
        (root / name).write_text("".join(json.dumps(value) + "\n" for value in values))
    run = RunData(root)
    run.refresh(episodes=True)
    parsed(render(run, None))


def test_charts_of_nothing_are_nothing() -> None:
    assert line_chart([]) == line_chart([Series("a", [])]) == line_chart([Series("a", [(1, 0)])])
    assert stacked_bars([Series("a", [])]) == before_after([]) == ""


def test_a_chart_of_one_point_shows_it() -> None:
    assert "<circle" in line_chart([Series("a", [(3, 0.5)])])
    parsed(stacked_bars([Series("a", [(3, 0.5)])]))


def test_long_lines_are_thinned_to_means() -> None:
    points = [(step, float(step)) for step in range(10)]
    assert thin(points, 5) == [(1, 0.5), (3, 2.5), (5, 4.5), (7, 6.5), (9, 8.5)]
    assert thin(points, 10) == points
    assert thin([], 5) == []


FINITE = st.floats(-1e9, 1e9, allow_subnormal=False)


@given(FINITE, FINITE)
def test_rounded_bounds_hold_all_values(one: float, other: float) -> None:
    low, high = min(one, other), max(one, other)
    bottom, top, marks = round_range(low, high)
    slack = 1e-6 * max(abs(low), abs(high), high - low)
    assert bottom - slack <= low <= high <= top + slack
    assert bottom < top
    assert 2 <= len(marks) <= 8


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0.0, 1.0, ["0", "0.5", "1.0"]),
        (0.31, 0.98, ["0.2", "0.4", "0.6", "0.8", "1.0"]),
        (0, 16000, ["0", "5k", "10k", "15k", "20k"]),
        (0, 3e-6, ["0", "1.0e-6", "2.0e-6", "3.0e-6"]),
        (5.0, 5.0, ["2", "4", "6", "8"]),
    ],
)
def test_marks_are_round(low: float, high: float, labels: list[str]) -> None:
    marks = round_range(low, high)[2]
    assert [label(mark, marks) for mark in marks] == labels


def test_marks_of_steps_are_whole() -> None:
    assert step_marks(0, 40) == [0, 10, 20, 30, 40]
    assert step_marks(1, 3) == [1, 2, 3]
    assert step_marks(1, 1) == [1]
    assert step_marks(1, 700) == [200, 400, 600]
