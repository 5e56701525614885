"""What `summary.json` says, out of the lines that the run wrote; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flexmarl.contracts.job import MARLJob
from flexmarl.orchestrator.scores import of_policy

Line = Mapping[str, Any]


def summary(
    job: MARLJob, seconds: float, metrics: Sequence[Line], evals: Sequence[Line]
) -> dict[str, Any]:
    """The run in a few numbers; those that were never measured are None.

    `tokens` counts prompt and sampled tokens of all steps; `eval_*` is the accuracy of a policy's
    agents in the first and last evaluation, `reward_*` their reward in the first and last step;
    `store_share` is the part of the steps' seconds that the store took, at most.
    """
    stepping = sum(line["seconds"]["step"] for line in metrics)
    storing = sum(line["seconds"].get("store", 0.0) for line in metrics)
    policies = {}
    for policy in job.spec.policies:
        agents = [agent.name for agent in job.spec.agents_of(policy.name)]
        last = metrics[-1]["policies"].get(policy.name, {}) if metrics else {}
        policies[policy.name] = {
            "version": int(last.get("version", 0)),
            "eval_before": of_policy(evals[0]["agents"], agents, "accuracy") if evals else None,
            "eval_after": of_policy(evals[-1]["agents"], agents, "accuracy") if evals else None,
            "reward_first": of_policy(metrics[0]["agents"], agents, "reward") if metrics else None,
            "reward_last": of_policy(metrics[-1]["agents"], agents, "reward") if metrics else None,
        }
    return {
        "job": job.metadata.name,
        "steps": metrics[-1]["step"] + 1 if metrics else 0,
        "seconds": seconds,
        "tokens": sum(line["tokens"]["prompt"] + line["tokens"]["sampled"] for line in metrics),
        "store_share": storing / stepping if stepping else None,
        "policies": policies,
    }
