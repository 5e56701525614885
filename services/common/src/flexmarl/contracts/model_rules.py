"""Rules about what a policy's model and engine can do with its agents' sampling.

Like `contracts.rules`, of which these are a part: pure, over the document as it was written.
"""

from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

from flexmarl.contracts.job import SamplingSpec
from flexmarl.contracts.places import Place
from flexmarl.contracts.policy import EngineKind
from flexmarl.contracts.problems import Problem, show

RANDOM_CONTEXT = 1024
"""Longest sequence of a `random://` model that does not say `context=`."""


def turns_fit_the_context(spec: Place) -> Iterator[Problem]:
    """Of models whose context the job file gives; that of others is known to their engine."""
    policies = {policy["name"].text(): policy for policy in spec["policies"].items()}
    default = SamplingSpec.model_fields["max_tokens"].default
    for agent in spec["agents"].items():
        policy = policies.get(agent["policy"].text(), Place())
        kind = policy["engine"]["kind"]
        if kind.given and kind.text() != EngineKind.TRANSFORMERS:
            continue  # the scripted engine has no context, an API its own
        context, field = _context(policy["model"]["uri"].text()), agent["sampling"]["maxTokens"]
        wanted = field.number(default)
        if context and wanted and wanted >= context:
            says = show(wanted) if field.given else f"{show(wanted)} by default"
            yield Problem(
                field.path,
                f"{says}, but the model's context is {show(context)} tokens",
                "must be lower, so that a prompt has room, too",
            )


def scripted_engines_have_no_distribution(spec: Place) -> Iterator[Problem]:
    """Warnings: the same job makes sense with another engine."""
    scripted, fields = set(), []
    for policy in spec["policies"].items():
        if policy["engine"]["kind"].text() == EngineKind.SCRIPTED:
            scripted.add(policy["name"].text())
            fields.append(policy["training"]["maxLogprobGap"])
    for agent in spec["agents"].items():
        if agent["policy"].text() in scripted:
            fields += [agent["sampling"][key] for key in ("temperature", "topP", "topK")]
    for field in fields:
        if field.given:
            says = "a scripted engine has no distribution to sample from or to compare"
            yield Problem(field.path, "would be ignored", says, warning=True)


def _context(uri: str | None) -> int | None:
    """None where the job file does not tell, or tells nonsense."""
    parts = urlsplit(uri or "")
    if parts.scheme != "random":
        return None
    text = parse_qs(parts.query).get("context", [str(RANDOM_CONTEXT)])[0]
    return int(text) if text.isdecimal() else None


MODEL_RULES = (turns_fit_the_context, scripted_engines_have_no_distribution)
