"""Rules that join several fields of a job, as pure functions over the document as it was written.

They look at plain data, not at models: so they also run when the schema found something, and see
what was given apart from what is a default (nothing is accepted and ignored). Values of the wrong
type are passed over; the schema reports those. What needs files, packages or the user's code is
checked by `flexmarl validate`, not here.
"""

from collections.abc import Callable, Iterator
from typing import Any

from flexmarl.contracts.cluster_rules import CLUSTER_RULES
from flexmarl.contracts.job import SamplingSpec
from flexmarl.contracts.model_rules import MODEL_RULES
from flexmarl.contracts.pipeline_rules import PIPELINE_RULES
from flexmarl.contracts.placement_rules import PLACEMENT_RULES
from flexmarl.contracts.places import Place
from flexmarl.contracts.policy import Algorithm, EngineKind
from flexmarl.contracts.problems import Problem, nearest, one_of, show
from flexmarl.contracts.template_rules import templates_have_the_shape_of_pods
from flexmarl.contracts.templates import TemplateError, fields_in

CHAT_ROLES = ("system", "user", "assistant", "tool")
TOKENIZERS = ("bytes", "file", "pypi", "hf")
FILE_SUFFIXES = (".jsonl", ".ndjson", ".parquet", ".pq")

Rule = Callable[[Place], Iterator[Problem]]


def check(document: Any) -> list[Problem]:
    """Every problem and warning of a whole MARLJob document."""
    spec = Place(document)["spec"]
    return [problem for rule in RULES for problem in rule(spec)]


def ignored(place: Place, because: str) -> Problem:
    return Problem(place.path, "would be ignored", f"{because}; remove it")


def names_are_unique(spec: Place) -> Iterator[Problem]:
    for kind in ("policies", "agents", "pools"):
        seen: dict[str, Place] = {}
        for item in spec[kind].items():
            name = item["name"].text()
            if name in seen:
                says = f"{show(name)} is already the name of {seen[name]}"
                yield Problem(item["name"].path, says, "names are unique")
            elif name:
                seen[name] = item
    for agent in spec["agents"].items():
        if agent["name"].text() in CHAT_ROLES:
            says = f"{show(agent['name'].text())} is a role of every chat"
            yield Problem(agent["name"].path, says, "choose another name")


def agents_and_policies_belong_together(spec: Place) -> Iterator[Problem]:
    policies = [name for item in spec["policies"].items() if (name := item["name"].text())]
    played = set()
    for agent in spec["agents"].items():
        wanted = agent["policy"].text()
        played.add(wanted)
        if wanted and policies and wanted not in policies:
            says = f"no policy is named {show(wanted)}"
            near = nearest(wanted, policies)
            yield Problem(agent["policy"].path, says, f"there is {one_of(policies)}", near)
    for policy in spec["policies"].items():
        name = policy["name"].text()
        if name and name not in played:
            yield Problem(
                policy["name"].path, f"no agent plays {show(name)}", "name it in an agent"
            )


def some_policy_learns(spec: Place) -> Iterator[Problem]:
    policies = spec["policies"].items()
    if policies and not any(_trained(policy) for policy in policies):
        yield Problem(spec["policies"].path, "no policy is trained", "at least one must learn")


def models_fit_engines(spec: Place) -> Iterator[Problem]:
    for policy in spec["policies"].items():
        kind = _kind(policy)
        engine, training = policy["engine"], policy["training"]
        if kind == EngineKind.OPENAI:
            if not engine["openai"].given:
                yield Problem(engine["openai"].path, "required for an openai engine, but missing")
            if _trained(policy) and policy.given:
                yield Problem(
                    training["algorithm"].path,
                    f"{show(training['algorithm'].text() or 'grpo')} cannot train weights "
                    "behind an API",
                    'must be "none" for an openai engine',
                )
            for field in ("model", "tokenizer"):
                if policy[field].given:
                    yield ignored(policy[field], "the API of an openai engine brings its own")
        elif kind and not policy["model"].given:
            yield Problem(
                policy["model"].path,
                "required, but missing",
                "only an openai engine goes without a model",
            )
        for other in EngineKind:
            if engine[other].given and kind and kind != other:
                yield ignored(engine[other], f"the engine's kind is {kind}")


def tokenizers_are_known(spec: Place) -> Iterator[Problem]:
    for policy in spec["policies"].items():
        text = policy["tokenizer"].text()
        scheme, found, rest = (text or "").partition("://")
        known = found and scheme in TOKENIZERS and (rest or scheme == "bytes")
        if text is not None and not known:
            allowed = f"must start with {one_of(f'{name}://' for name in TOKENIZERS)}"
            yield Problem(policy["tokenizer"].path, f"{show(text)} is not allowed", allowed)


def training_is_used(spec: Place) -> Iterator[Problem]:
    agents = {agent["name"].text(): agent["policy"].text() for agent in spec["agents"].items()}
    for policy in spec["policies"].items():
        training, name = policy["training"], policy["name"].text()
        if not _trained(policy):
            for field in training.fields():
                if field.key != "algorithm":
                    yield ignored(field, "the policy is not trained")
            continue
        for index, beta in enumerate(training["betas"].items()):
            number = beta.number()
            if number is not None and not 0 <= number < 1:
                says = f"{show(number)} is not allowed"
                yield Problem((*training["betas"].path, index), says, "must be in [0, 1)")
        steps, warmup = spec["steps"].number(), training["warmupSteps"].number()
        if steps and warmup and warmup >= steps:
            yield Problem(
                training["warmupSteps"].path,
                f"{show(warmup)} steps of warm-up in a job of {show(steps)}",
                "the learning rate never gets to its full value",
                warning=True,
            )
        warm = training["warmStart"]
        agent = warm["agent"].text()
        if agent and agent not in agents:
            mine = [one for one, plays in agents.items() if one and plays == name]
            yield Problem(
                warm["agent"].path,
                f"no agent is named {show(agent)}",
                f"{show(name)} is played by {one_of(mine)}",
                nearest(agent, mine),
            )
        elif agent and agents[agent] != name:
            yield Problem(
                warm["agent"].path,
                f"{show(agent)} plays the policy {show(agents[agent])}",
                f"must be an agent of {show(name)}",
            )
        yield from _templates(warm)


def _templates(warm: Place) -> Iterator[Problem]:
    for field in (warm["prompt"], warm["completion"]):
        try:
            fields_in(field.text() or "")
        except TemplateError as error:
            yield Problem(field.path, error.says, error.allowed)


def sampling_can_teach(spec: Place) -> Iterator[Problem]:
    policies = {policy["name"].text(): policy for policy in spec["policies"].items()}
    for agent in spec["agents"].items():
        policy = policies.get(agent["policy"].text())
        if policy is None:
            continue
        sampling = agent["sampling"]
        if _kind(policy) == EngineKind.OPENAI and sampling["topK"].number():
            yield ignored(sampling["topK"], "chat completions have no such parameter")
            continue
        temperature, cuts = sampling["temperature"].number(), []
        top_p, top_k = sampling["topP"].number(), sampling["topK"].number()
        if top_p is not None and 0 < top_p < SamplingSpec.model_fields["top_p"].default:
            cuts.append(sampling["topP"])
        if top_k is not None and top_k > 0:
            cuts.append(sampling["topK"])
        if temperature == 0 and _trained(policy):
            yield Problem(
                sampling["temperature"].path,
                "0 makes all episodes of a group alike",
                f"must be greater than 0 while {show(policy['name'].text())} is trained",
            )
        elif temperature == 0:
            for cut in cuts:
                yield ignored(cut, "temperature 0 always takes the likeliest token")
        elif _trained(policy):
            for cut in cuts:
                yield Problem(
                    cut.path,
                    f"{show(cut.value)} cuts the distribution that is trained",
                    "log-probs are those after the cut, tokens outside it are never learned",
                    warning=True,
                )


def one_source_of_code(spec: Place) -> Iterator[Problem]:
    for field in (spec["workflow"], spec["reward"]):
        given = [key for key in ("name", "entrypoint") if field[key].given]
        if field.given and len(given) != 1:
            says = "both name and entrypoint are given" if given else "says not what to run"
            yield Problem(field.path, says, "exactly one of name and entrypoint is needed")
    workflow = spec["workflow"]
    own = spec["pipeline"]["filter"]
    places = [workflow, spec["reward"], workflow["config"]["environment"], own]
    brings = spec["code"].given and not spec["code"]["configMap"].given  # which has data, too
    if brings and not any(place["entrypoint"].given for place in places):
        because = "no workflow, environment, reward or filter has an entrypoint"
        yield ignored(spec["code"], because)


def data_is_described_once(spec: Place) -> Iterator[Problem]:
    yield from _data(spec["data"])
    yield from _data(spec["eval"]["data"])
    held_out = spec["eval"]["data"]
    if held_out["shuffle"].value is True:
        yield ignored(held_out["shuffle"], "held-out tasks are played in the order of their source")
    elif held_out["seed"].given and (held_out["uri"].text() or "").startswith("file://"):
        yield ignored(held_out["seed"], "held-out tasks of a file are not shuffled")
    for policy in spec["policies"].items():
        yield from _data(policy["training"]["warmStart"]["data"])


def _data(data: Place) -> Iterator[Problem]:
    uri = data["uri"].text() or ""
    if uri.startswith("gym://") and data["format"].given:
        yield ignored(data["format"], "a generator has no format")
    if uri.startswith("file://"):
        if data["size"].given:
            yield ignored(data["size"], "a file has the size it has")
        if not data["format"].given and not uri.lower().endswith(FILE_SUFFIXES):
            says = f"{show(uri)} ends in none of {one_of(FILE_SUFFIXES)}"
            yield Problem(data["uri"].path, says, "give the format")
        if data["seed"].given and data["shuffle"].value is False and data.path[1] != "eval":
            yield ignored(data["seed"], "a file that is not shuffled needs none")


def numbers_fit_together(spec: Place) -> Iterator[Problem]:
    batch, evaluation = spec["batch"], spec["eval"]
    tasks, micro = batch["tasksPerStep"].number(8), batch["microBatch"].number(1)
    if tasks and micro and micro > tasks:
        place = batch["microBatch"] if batch["microBatch"].given else batch["tasksPerStep"]
        says = f"{show(micro)} groups at once, but a step has {show(tasks)}"
        yield Problem(place.path, says, "must be at most tasksPerStep")
    wanted, size = evaluation["tasks"].number(), evaluation["data"]["size"].number(1000)
    generated = (evaluation["data"]["uri"].text() or "").startswith("gym://")
    if generated and wanted and size and wanted > size:
        says = f"{show(wanted)} tasks, but its data has {show(size)}"
        yield Problem(evaluation["tasks"].path, says, "must be at most eval.data.size")
    every, steps = spec["eval"]["everySteps"].number(), spec["steps"].number()
    if every and steps and every >= steps:
        yield Problem(
            spec["eval"]["everySteps"].path,
            f"the job has only {show(steps)} steps",
            "evaluation happens before and after only",
            warning=True,
        )


def services_are_used(spec: Place) -> Iterator[Problem]:
    if spec["store"]["url"].given:
        if spec["store"]["maxMemoryMib"].given:
            yield ignored(spec["store"]["maxMemoryMib"], "the store at url has its own limit")
        if spec["roles"]["store"].given:
            yield ignored(spec["roles"]["store"], "store.url names a store that runs elsewhere")
    encrypted = (spec["store"]["url"].text() or "").startswith("rediss://")
    if spec["store"]["caFile"].given and not encrypted:
        yield ignored(spec["store"]["caFile"], "only a rediss:// url has certificates")
    policies = spec["policies"].items()
    kinds = {_kind(policy) for policy in policies}
    if spec["roles"]["engine"].given and kinds == {EngineKind.OPENAI}:
        yield ignored(spec["roles"]["engine"], "every policy is behind an API")
    slots, learning = spec["roles"]["trainer"]["replicas"].number(), sum(map(_trained, policies))
    if slots and slots > learning > 0:
        yield Problem(
            spec["roles"]["trainer"]["replicas"].path,
            f"{show(slots)} slots for {learning} trained policies",
            "the others stay idle",
            warning=True,
        )


def _kind(policy: Place) -> str | None:
    """None when it is no kind there is."""
    kind = policy["engine"]["kind"]
    known = kind.text() in list(EngineKind)
    return kind.text() if known else None if kind.given else EngineKind.TRANSFORMERS.value


def _trained(policy: Place) -> bool:
    return policy["training"]["algorithm"].text() != Algorithm.NONE


RULES: tuple[Rule, ...] = (
    names_are_unique,
    agents_and_policies_belong_together,
    some_policy_learns,
    models_fit_engines,
    tokenizers_are_known,
    training_is_used,
    sampling_can_teach,
    one_source_of_code,
    data_is_described_once,
    numbers_fit_together,
    services_are_used,
    *MODEL_RULES,
    *PIPELINE_RULES,
    *CLUSTER_RULES,
    *PLACEMENT_RULES,
    templates_have_the_shape_of_pods,
)
