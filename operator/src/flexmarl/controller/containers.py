"""Containers that do not start, or not for long: reasons and sentences; pure."""

from __future__ import annotations

from collections.abc import Iterator

from flexmarl.contracts.preparation import CONTAINER
from flexmarl.controller.names import EXPERIENCE, ORCHESTRATOR
from flexmarl.controller.observed import Ended, Finding, Observed, Pod
from flexmarl.controller.words import ENDED, cause, last_words, shortened
from flexmarl.runtime.process import HOPELESS

PULLING = {
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
    "SignatureValidationFailed",
}
UNCONFIGURED = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
RESTARTING = {"CrashLoopBackOff"}
STORE = "StoreUnreachable"
STORE_WORDS = ("the store", "store.")
"""With which the last words of the service in front of the store begin when that is at fault."""
SANDBOX = "Failed to create pod sandbox"
"""How events of that begin."""


def of_containers(seen: Observed) -> Iterator[Finding]:
    for pod in seen.pods:
        if pod.deleting:
            continue
        yield from _beyond_hope(pod, seen)
        if (found := _blocked(pod)) is not None:
            yield found


def _blocked(pod: Pod) -> Finding | None:
    if pod.waiting in PULLING:
        return _pulling(pod)
    if pod.waiting in UNCONFIGURED:
        return _unconfigured(pod)
    if pod.unmounted:
        return _unmounted(pod)
    if (found := _store(pod)) is not None:
        return found
    reason, _ = cause(pod)
    comes_back = reason and not pod.ready and pod.phase not in ENDED
    return _restarting(pod, reason) if comes_back or pod.waiting in RESTARTING else None


def _restarting(pod: Pod, reason: str) -> Finding:
    count, words = sum(each.all for each in pod.ends.values()), last_words(pod)
    times = "once" if count == 1 else f"{count} times"
    now = "waits to be" if pod.waiting in RESTARTING else "was"
    says = f"{pod.name} has ended {times} and {now} restarted"
    return Finding(reason or "ContainerRestarting", f"{says}: {words}" if words else says)


def _pulling(pod: Pod) -> Finding:
    said = shortened(pod.waiting_message)
    if "no match for platform" in said or "no matching manifest" in said:
        what = f"push one for the architecture of {pod.node}, or choose other nodes"
    else:
        what = "push the image, or give the installation image.pullSecrets"
    return Finding("ImagePullFailed", f"{pod.name} cannot pull its image: {said}; {what}")


def _unconfigured(pod: Pod) -> Finding:
    said = shortened(pod.waiting_message)
    if "secret" in said.lower():
        what = "create the Secret" if "not found" in said else "give the Secret what it lacks"
        return Finding("SecretMissing", f"{pod.name} cannot start: {said}; {what}")
    if "executable file not found" in said:
        what = "spec.code.image, or the image of a template, must be made from FlexMARL's"
    elif "exec format error" in said:
        what = f"its image is not for the architecture of {pod.node}"
    elif "configmap" in said.lower():
        what = "create the ConfigMap"
    else:
        what = "mend the template of the role or pool, or see the node"
    return Finding("PodMisconfigured", f"{pod.name} cannot start: {said}; {what}")


def _unmounted(pod: Pod) -> Finding:
    said = shortened(pod.unmounted)
    if said.startswith(SANDBOX):
        return Finding(
            "SandboxFailed",
            f"{pod.name} cannot be set up on {pod.node}: {said}; see the network plugin and the "
            "container runtime of that node, and runtimeClassName if the role's template names one",
        )
    if "Multi-Attach" in said:
        what = "a claim that is not ReadWriteMany serves one node: have these pods on one node, or "
        what += "create the job anew with a claim of accessMode ReadWriteMany (spec.checkpoint, "
        what += "spec.cache)"
    elif "not found" in said:
        what = "create what is not found"
    else:
        what = "see the volume, its driver, and the events of the pod"
    return Finding("VolumeNotMounted", f"{pod.name} has no volume yet: {said}; {what}")


def _store(pod: Pod) -> Finding | None:
    """Whether the service in front of the store ended for want of it, and is not back."""
    words = last_words(pod)
    if pod.role != EXPERIENCE or pod.ready or not words.startswith(STORE_WORDS):
        return None
    if pod.ended is not None and pod.ended.exit_code == HOPELESS:
        return None
    return Finding(
        STORE,
        f"{pod.name}: {words}; see whether the store runs and admits the job's pods, and whether "
        "the URL in store.url or in the Secret of store.secretRef is right",
    )


def _beyond_hope(pod: Pod, seen: Observed) -> Iterator[Finding]:
    ended = pod.ended or Ended(0)
    words, code = last_words(pod), ended.exit_code
    unheard = code == HOPELESS and ended.container == CONTAINER  # its first container said nothing
    if pod.role == ORCHESTRATOR and not unheard:  # its Job says so
        return
    if code == HOPELESS:
        yield Finding("ProcessFailed", f"{pod.name}: {words or 'it said nothing'}", fatal=True)
    elif pod.crashes > (most := seen.limits.get(pod.role, 3)):
        yield Finding(
            "RestartsExceeded",
            f"{pod.name} ended more often than the {most} restarts that restartPolicy.max allows; "
            f"the last time with exit code {code}{': ' + words if words else ''}",
            fatal=True,
        )
