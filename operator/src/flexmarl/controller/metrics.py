"""What Prometheus reads of the controller. The series of a job end with it."""

from prometheus_client import Counter, Gauge, Histogram

from flexmarl.controller.cache import Key

BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 30, 60)
RECONCILES = Histogram(
    "flexmarl_controller_reconcile_seconds",
    "Time of one look at a job, with all that was done about it.",
    buckets=BUCKETS,
)
REACTIONS = Histogram(
    "flexmarl_controller_reaction_seconds",
    "Time from when a job was to be looked at until that was done.",
    buckets=BUCKETS,
)
ERRORS = Counter(
    "flexmarl_controller_errors_total", "Looks at a job that ended in an error.", ["kind"]
)
APPLIES = Counter("flexmarl_controller_applies_total", "Objects applied.", ["kind"])
PHASE = Gauge("flexmarl_job_phase", "1 for the phase a job is in.", ["namespace", "job", "phase"])
STEP = Gauge("flexmarl_job_step", "Steps that are trained.", ["namespace", "job"])
STEPS = Gauge("flexmarl_job_steps", "Steps there are to train.", ["namespace", "job"])
RESTARTS = Gauge("flexmarl_job_restarts", "Restarts of a job's processes.", ["namespace", "job"])


class Series:
    """What was said of each job, so that it can be taken back."""

    def __init__(self) -> None:
        self._phases: dict[Key, str] = {}

    def say(self, key: Key, status: dict[str, object]) -> None:
        where, phase = (key.namespace, key.name), str(status.get("phase", "Pending"))
        before = self._phases.get(key)
        if before not in (None, phase):
            PHASE.remove(*where, before)
        self._phases[key] = phase
        PHASE.labels(*where, phase).set(1)
        for gauge, name in ((STEP, "step"), (STEPS, "steps"), (RESTARTS, "restartsTotal")):
            gauge.labels(*where).set(float(str(status.get(name) or 0)))

    def forget(self, key: Key) -> None:
        phase = self._phases.pop(key, None)
        if phase is not None:
            PHASE.remove(key.namespace, key.name, phase)
            for gauge in (STEP, STEPS, RESTARTS):
                gauge.remove(key.namespace, key.name)
