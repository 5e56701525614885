"""All pods of a job or none: the group that gang scheduling needs, per scheduler.

`native` is proven on a cluster; coscheduling and volcano follow their documentation, untried.
"""

import copy
from collections.abc import Mapping
from typing import Any

from flexmarl.contracts.cluster import GangKind
from flexmarl.controller.names import Manifest

API = {
    GangKind.NATIVE: "scheduling.k8s.io/v1alpha2",
    GangKind.COSCHEDULING: "scheduling.x-k8s.io/v1alpha1",
    GangKind.VOLCANO: "scheduling.volcano.sh/v1beta1",
}


def group(kind: GangKind, metadata: Manifest, pods: int) -> list[Manifest]:
    """The PodGroup of a job whose `pods` start together; none for `none`."""
    if kind is GangKind.NONE:
        return []
    if kind is GangKind.NATIVE:
        spec: Manifest = {"schedulingPolicy": {"gang": {"minCount": pods}}}
    else:
        spec = {"minMember": pods}
    return [{"apiVersion": API[kind], "kind": "PodGroup", "metadata": metadata, "spec": spec}]


def size(manifest: Mapping[str, Any]) -> int:
    """How many pods of a PodGroup start together."""
    spec = manifest["spec"]
    return int(spec.get("minMember") or spec["schedulingPolicy"]["gang"]["minCount"])


def joined(kind: GangKind, name: str, template: Manifest) -> Manifest:
    """The pod template as a member of the group `name`."""
    found = copy.deepcopy(template)
    match kind:
        case GangKind.NATIVE:
            found["spec"]["schedulingGroup"] = {"podGroupName": name}
        case GangKind.COSCHEDULING:
            found["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] = name
        case GangKind.VOLCANO:
            annotations = found["metadata"].setdefault("annotations", {})
            annotations["scheduling.k8s.io/group-name"] = name
            found["spec"]["schedulerName"] = "volcano"
        case _:
            pass
    return found
