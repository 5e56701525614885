"""Which run a command means: by name, by path, or the newest."""

from pathlib import Path

from flexmarl.cli.console import CommandError
from flexmarl.contracts.problems import did_you_mean

RUNS = Path("runs")
EVIDENCE = ("job.yaml", "progress.json", "metrics.jsonl", "summary.json")
"""A folder with one of these is a run."""


def find_run(name: str | None) -> Path:
    """The run directory that `name` means (None: the newest below `runs/`); CommandError."""
    if name is None:
        runs = sorted(known_runs(), key=_age)
        if not runs:
            raise CommandError(
                f"There is no run in {RUNS.absolute()} yet; start one with: flexmarl run job.yaml"
            )
        return runs[-1]
    for path in (RUNS / name, Path(name)):
        if is_run(path):
            return path
    if Path(name).is_dir() or (RUNS / name).is_dir():
        raise CommandError(f"{name} is a folder, but holds none of {', '.join(EVIDENCE)}")
    names = [run.name for run in known_runs()]
    hint = did_you_mean(name, names) or f"; there is {', '.join(names) or 'none yet'}"
    raise CommandError(f'There is no run "{name}"{hint}')


def is_run(path: Path) -> bool:
    return any((path / file).exists() for file in EVIDENCE)


def known_runs() -> list[Path]:
    return sorted(path for path in RUNS.glob("*") if is_run(path)) if RUNS.is_dir() else []


def _age(run: Path) -> float:
    return max((run / file).stat().st_mtime for file in EVIDENCE if (run / file).exists())
