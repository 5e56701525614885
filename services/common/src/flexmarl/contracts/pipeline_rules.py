"""Rules about how rollout and training overlap: batch, pipeline and what they ask of a policy.

Like `contracts.rules`, of which these are a part: pure, over the document as it was written.
"""

from collections.abc import Iterator

from flexmarl.contracts.job import SamplingSpec
from flexmarl.contracts.places import Place
from flexmarl.contracts.policy import Algorithm, Correction
from flexmarl.contracts.problems import Problem, nearest, one_of, show


def staleness_fits_the_mode(spec: Place) -> Iterator[Problem]:
    pipeline = spec["pipeline"]
    staleness = pipeline["maxStaleness"]
    stale = (staleness.number() or 0) > 0
    if stale and pipeline["deterministic"].value is True:
        yield Problem(
            staleness.path,
            f"{show(staleness.value)} in a deterministic job",
            "must be 0: with older versions allowed, which one samples a token depends on timing",
        )
    if pipeline["partialRollout"].value is True and not stale:
        yield Problem(
            pipeline["partialRollout"].path,
            "unfinished episodes cannot go on at a newer version",
            "needs pipeline.maxStaleness above 0",
        )
    if stale and pipeline["overlap"].value is False:
        yield Problem(
            staleness.path,
            "groups of later steps are played while a step trains, but overlap is off",
            "remove overlap: false, or set maxStaleness to 0",
        )


def deterministic_engines_have_one_thread(spec: Place) -> Iterator[Problem]:
    if spec["pipeline"]["deterministic"].value is not True:
        return
    for policy in spec["policies"].items():
        threads = policy["engine"]["transformers"]["threads"]
        if (threads.number() or 1) > 1:
            yield Problem(
                threads.path,
                f"{show(threads.value)} in a deterministic job",
                "must be 1: how threads share a sum decides its rounding",
            )


def updates_split_the_step(spec: Place) -> Iterator[Problem]:
    batch = spec["batch"]
    tasks, updates = batch["tasksPerStep"].number(8), batch["updatesPerStep"].number(1)
    micro = batch["microBatch"].number(1)
    if not tasks or not updates:
        return
    if tasks % updates:
        yield Problem(
            batch["updatesPerStep"].path,
            f"{show(updates)} does not divide the step's {show(tasks)} groups",
            "each update takes equally many groups",
        )
    elif micro and updates > 1 and micro > tasks // updates:
        yield Problem(
            (batch["microBatch"] if batch["microBatch"].given else batch["updatesPerStep"]).path,
            f"{show(micro)} groups at once, but an update has {show(tasks // updates)}",
            "must be at most tasksPerStep / updatesPerStep",
        )


def corrections_are_used(spec: Place) -> Iterator[Problem]:
    pipeline = spec["pipeline"]
    stale = (pipeline["maxStaleness"].number() or 0) > 0 or pipeline["replay"].given
    for policy in spec["policies"].items():
        training = policy["training"]
        algorithm = training["algorithm"].text()
        if algorithm == Algorithm.NONE:
            continue
        chosen = training["correction"].text()
        if training["correctionCap"].given and (
            chosen == Correction.CLIP or (chosen is None and not stale)
        ):
            yield Problem(
                training["correctionCap"].path,
                "would be ignored",
                "the correction is clip, which has no cap; remove it or name a correction",
            )
        if stale and chosen == Correction.CLIP:
            yield Problem(
                training["correction"].path,
                "clip takes tokens of older versions for those of the step's own",
                "tis or decoupled correct for it",
                warning=True,
            )
        if algorithm == Algorithm.REINFORCE_PP and pipeline["overlap"].value is not False:
            yield Problem(
                training["algorithm"].path,
                "reinforce-pp whitens advantages over the whole step",
                f"overlap is off for {show(policy['name'].text())}: it trains once all groups came",
                warning=True,
            )


def selection_is_possible(spec: Place) -> Iterator[Problem]:
    pipeline = spec["pipeline"]
    chosen = pipeline["filter"]
    given = [key for key in ("name", "entrypoint") if chosen[key].given]
    if chosen.given and len(given) != 1:
        says = "both name and entrypoint are given" if given else "says not what to keep"
        yield Problem(chosen.path, says, "exactly one of name and entrypoint is needed")
    agents = [name for agent in spec["agents"].items() if (name := agent["name"].text())]
    wanted = pipeline["difficulty"]["agent"].text()
    if wanted and agents and wanted not in agents:
        yield Problem(
            pipeline["difficulty"]["agent"].path,
            f"no agent is named {show(wanted)}",
            f"there is {one_of(agents)}",
            nearest(wanted, agents),
        )
    buffer = pipeline["overlong"]["buffer"].number()
    policies = {policy["name"].text(): policy for policy in spec["policies"].items()}
    for agent in spec["agents"].items():
        policy = policies.get(agent["policy"].text())
        if not buffer or policy is None:
            continue
        if policy["training"]["algorithm"].text() == Algorithm.NONE:
            continue
        most = agent["sampling"]["maxTokens"].number(
            SamplingSpec.model_fields["max_tokens"].default
        )
        if most and buffer >= most:
            yield Problem(
                pipeline["overlong"]["buffer"].path,
                f"{show(buffer)} tokens, but {show(agent['name'].text())} has {show(most)} in all",
                "must be below the maxTokens of every trained agent",
            )


PIPELINE_RULES = (
    staleness_fits_the_mode,
    deterministic_engines_have_one_thread,
    updates_split_the_step,
    corrections_are_used,
    selection_is_possible,
)
