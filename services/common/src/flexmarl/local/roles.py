"""The roles that processes play: what each runs, and who stops before whom. Light to import."""

from collections.abc import Mapping

MODULES: Mapping[str, str] = {
    "store": "flexmarl.experience.embedded",
    "experience": "flexmarl.experience.process",
    "weights": "flexmarl.tensors.process",
    "engine": "flexmarl.rollout.engines.process",
    "trainer": "flexmarl.trainer.process",
    "rollout-worker": "flexmarl.rollout.process",
    "orchestrator": "flexmarl.orchestrator.process",
    "controller": "flexmarl.controller.process",
}
"""Role -> module whose `main()` is the process; in the order in which they are started."""
DRAIN_ORDER = (
    ("orchestrator",),
    ("rollout-worker",),
    ("trainer", "engine"),
    ("experience",),
    ("weights",),
    ("store",),
)
"""Who asks stops before whom it asks."""
