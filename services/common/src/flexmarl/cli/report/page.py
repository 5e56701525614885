"""Puts a report together: facts, charts, table and episodes of a run."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path

from flexmarl.cli.report.episodes import episode_card, first_and_last, text_of
from flexmarl.cli.report.plots import Series, before_after, line_chart, stacked_bars
from flexmarl.cli.report.style import CSS
from flexmarl.cli.rundata import Line, RunData, number
from flexmarl.cli.view import tokens_per_second
from flexmarl.cli.words import NONE, amount, decimal, duration, percent
from flexmarl.contracts.job import MARLJob
from flexmarl.contracts.policy import PolicySpec
from flexmarl.runtime.files import replace

SHOWN_EPISODES = 5
TIMES = ("rollout", "train", "sync", "checkpoint")
CURVES = (
    ("loss", "Loss", "per policy"),
    ("grad_norm", "Gradient norm", "before clipping"),
    ("entropy", "Entropy", "nats per sampled token"),
    ("kl", "KL", "to the policy that sampled"),
    ("logprob_gap_mean", "Log-prob gap", "mean |training - sampling| per token"),
    ("clip_fraction", "Clipped", "share of tokens"),
)


def write_report(run: RunData, job: MARLJob | None) -> Path:
    """Write report.html of what `run` holds now; its path. `job` adds facts and names."""
    run.refresh(episodes=True)
    path = run.root / "report.html"
    replace(path, render(run, job), durable=False)
    return path


def render(run: RunData, job: MARLJob | None) -> str:
    name = job.metadata.name if job else run.name
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(name)} - FlexMARL</title><style>{CSS}</style></head><body><main>"
        + "".join(_sections(run, job, name))
        + "</main></body></html>\n"
    )


def _sections(run: RunData, job: MARLJob | None, name: str) -> Iterator[str]:
    phase = run.phase
    yield f'<header><h1>{escape(name)}</h1><span class="phase {phase}">{phase}</span></header>'
    agents = [agent.name for agent in job.spec.agents] if job else run.agents
    if job:
        yield f'<p class="soft">{_sentence(job)}</p>'
    if run.progress.message:
        kind = "note bad" if phase == "Failed" else "note"
        yield f'<div class="{kind}">{text_of(run.progress.message)}</div>'
    yield from (f'<div class="note">{text_of(note)}</div>' for note in run.notes)
    yield _tiles(run)
    yield from _results(run, agents)
    yield from _charts(run, agents)
    yield from _episodes(run)
    if job:
        yield f'<h2>The job</h2><div class="card">{_facts(job)}</div>'
        source = run.root / "job.yaml"
        if source.exists():
            text = source.read_text(encoding="utf-8", errors="replace")
            yield f"<details><summary>job.yaml</summary><pre>{text_of(text)}</pre></details>"
    yield "<footer>Made by <b>flexmarl report</b>. Numbers per step are in metrics.jsonl.</footer>"


def _sentence(job: MARLJob) -> str:
    spec, trained = job.spec, job.spec.trained_policies
    workflow = spec.workflow.name or spec.workflow.entrypoint
    who = "1 agent" if len(spec.agents) == 1 else f"{len(spec.agents)} agents"
    learning = "1 policy" if len(trained) == 1 else f"{len(trained)} policies"
    return escape(
        f"{who} play {workflow}; {learning} trained for {spec.steps} steps of "
        f"{spec.batch.tasks_per_step} tasks, {spec.batch.group_size} episodes each; "
        f"seed {spec.seed}."
    )


def _tiles(run: RunData) -> str:
    metrics = run.metrics
    rates = [rate for line in metrics if (rate := tokens_per_second(line)) is not None]
    tokens = [number(line, "tokens", kind) for line in metrics for kind in ("prompt", "sampled")]
    tiles = [
        (f"{len(metrics)}{f' / {run.progress.steps}' if run.progress.steps else ''}", "steps"),
        (duration(run.seconds), "time"),
        (amount(sum(count or 0 for count in tokens)), "tokens, prompt and sampled"),
        (amount(sum(rates) / len(rates)) if rates else NONE, "tokens per second"),
    ]
    evals = run.evals
    for agent in run.agents[:4] if evals else ():
        tiles.append((percent(number(evals[-1], "agents", agent, "accuracy")),
                      f"{escape(agent)}, held out"))  # fmt: skip
    return (
        '<div class="tiles">'
        + "".join(f'<div class="tile"><b>{big}</b><span>{small}</span></div>'
                  for big, small in tiles)
        + "</div>"
    )  # fmt: skip


def _results(run: RunData, agents: list[str]) -> Iterator[str]:
    evals, metrics = run.evals, run.metrics
    if not metrics and not evals:
        yield '<p class="soft">No step is finished yet.</p>'
        return
    rows = []
    for agent in agents:
        cells = [
            *(percent(number(line, "agents", agent, "accuracy")) for line in _ends(evals)),
            *(decimal(number(line, "agents", agent, "reward")) for line in _ends(metrics)),
            *(percent(number(line, "agents", agent, "accuracy")) for line in _ends(metrics)),
        ]
        rows.append(
            f"<tr><td>{escape(agent)}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
        )
    heads = ("held out, before", "held out, now", "reward, first step", "reward, last step",
             "accuracy, first step", "accuracy, last step")  # fmt: skip
    yield (
        '<h2>Results</h2><div class="card scroll"><table><tr><th>agent</th>'
        + "".join(f"<th>{head}</th>" for head in heads)
        + f"</tr>{''.join(rows)}</table></div>"
    )


def _ends(lines: list[Line]) -> tuple[Line, Line]:
    return (lines[0], lines[-1]) if lines else ({}, {})


def _charts(run: RunData, agents: list[str]) -> Iterator[str]:
    metrics, evals = run.metrics, run.evals
    charts = []
    if len(evals) > 1:
        pairs = []
        for index, agent in enumerate(agents):
            before, after = (number(line, "agents", agent, "accuracy") for line in _ends(evals))
            if before is not None and after is not None:
                pairs.append((agent, before, after, index))
        charts.append(("Held-out accuracy", "before and after", before_after(pairs)))

    def scores(key: str) -> list[Series]:
        return [Series(agent, _points(metrics, "agents", agent, key), index)
                for index, agent in enumerate(agents)]  # fmt: skip

    held_out = [
        Series(f"{agent}, held out", _points(evals, "agents", agent, "accuracy", shift=0), i, True)
        for i, agent in enumerate(agents)
    ]
    charts += [
        ("Reward", "mean per agent", line_chart(scores("reward"))),
        ("Accuracy", "share of episodes with reward 1; dots: held out",
         line_chart([*scores("accuracy"), *held_out], bounds=(0, 1), form=percent)),
    ]  # fmt: skip
    for key, title, unit in CURVES:
        lines = [Series(policy, _points(metrics, "policies", policy, key), index)
                 for index, policy in enumerate(run.policies)]  # fmt: skip
        charts.append((title, unit, line_chart(lines)))
    times = [Series(name, _points(metrics, "seconds", name), index + 2)
             for index, name in enumerate(TIMES)]  # fmt: skip
    times = [one for one in times if any(value for _, value in one.points)]
    rates = [(step + 1, rate) for step, line in enumerate(metrics)
             if (rate := tokens_per_second(line)) is not None]  # fmt: skip
    charts += [
        ("Time per step", "seconds; parts overlap", stacked_bars(times)),
        ("Speed", "prompt and sampled tokens per second",
         line_chart([Series("tokens/s", rates, 6)], bounds=(0, 0), form=amount)),
    ]  # fmt: skip
    ages = [Series(where.replace("_", " "), _points(metrics, "staleness", where), index)
            for index, where in enumerate(("trained", "queued", "in_flight"))]  # fmt: skip
    dropped = [Series("groups", _points(metrics, "counts", "groups-dropped"), 1)]
    for title, unit, series in (
        ("Staleness", "versions, the oldest token", ages),
        ("Dropped by the filter", "groups, each played again", dropped),
    ):
        if any(value for one in series for _, value in one.points):
            charts.append((title, unit, line_chart(series)))
    figures = "".join(
        f"<figure><figcaption>{title} <span>{unit}</span></figcaption>{chart}</figure>"
        for title, unit, chart in charts
        if chart
    )
    if figures:
        yield f'<h2>Over the steps</h2><div class="charts">{figures}</div>'


def _points(lines: list[Line], *keys: str, shift: int = 1) -> list[tuple[int, float]]:
    """(steps done by then, value); evaluations count those already, `shift` 0."""
    return [
        (int(step) + shift, value)
        for line in lines
        if (step := number(line, "step")) is not None and (value := number(line, *keys)) is not None
    ]


def _episodes(run: RunData) -> Iterator[str]:
    first, last = first_and_last(run.episodes, SHOWN_EPISODES)
    if first:
        yield "<h2>Episodes</h2>"
    for title, episodes in (("At first", first), ("At last", last)):
        if episodes:
            cards = "".join(episode_card(line) for line in episodes)
            yield f'<h3>{title}</h3><div class="episodes">{cards}</div>'


def _facts(job: MARLJob) -> str:
    spec = job.spec
    facts = [("steps, seed", f"{spec.steps}, {spec.seed}")]
    facts += [(f"policy {policy.name}", _policy(policy)) for policy in spec.policies]
    for agent in spec.agents:
        sampling, longest = agent.sampling, agent.sampling.max_tokens
        how = f"at most {longest} tokens at temperature {sampling.temperature:g}"
        facts.append((f"agent {agent.name}", f"plays {agent.policy}; {how}"))
    facts.append(("tasks", spec.data.uri))
    if spec.eval:
        facts.append(("held-out tasks", spec.eval.data.uri))
    rows = "".join(f"<dt>{escape(key)}</dt><dd>{text_of(value)}</dd>" for key, value in facts)
    return f"<dl>{rows}</dl>"


def _policy(policy: PolicySpec) -> str:
    model = policy.model.uri if policy.model else ""
    if policy.engine.openai:
        model = f"{policy.engine.openai.model} at {policy.engine.openai.base_url}"
    if not policy.trained:
        return f"{model}; not trained"
    training = policy.training
    warm = training.warm_start
    start = f"; supervised warm start of {warm.steps} steps" if warm else ""
    return f"{model}; {training.algorithm.value}, learning rate {training.lr:g}{start}"
