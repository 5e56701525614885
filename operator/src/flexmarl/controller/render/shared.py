"""What pods of several roles share: the Service they are found by, their set, their pool."""

from __future__ import annotations

from collections.abc import Mapping

from flexmarl.contracts.cluster import NetworkSpec, PoolSpec
from flexmarl.contracts.job import MARLJobSpec
from flexmarl.contracts.quantities import mebibytes
from flexmarl.contracts.sizes import PROCESS_BYTES
from flexmarl.controller.names import Manifest, selector
from flexmarl.controller.render.merge import laid_over
from flexmarl.controller.render.parts import PORT, Installation, Pods, Subject
from flexmarl.controller.render.pods import workload

HEAVY = {"requests": {"cpu": "100m", "memory": mebibytes(PROCESS_BYTES)}}
"""What a process with torch takes before it has a model."""


def service(
    subject: Subject,
    name: str,
    role: str,
    match: Mapping[str, str],
    *,
    headless: bool = True,
    publish_not_ready: bool = False,
    policy: str = "",
    pool: str = "",
) -> Manifest:
    spec: Manifest = {
        "selector": dict(match),
        "ports": [{"name": "grpc", "port": PORT, "targetPort": "grpc", "protocol": "TCP"}],
    }
    if headless:
        spec |= {"clusterIP": "None", "publishNotReadyAddresses": publish_not_ready}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": subject.metadata(name, role, policy=policy, pool=pool),
        "spec": spec,
    }


def stateful(
    subject: Subject,
    installation: Installation,
    pods: Pods,
    *,
    name: str,
    service_name: str,
    replicas: int,
) -> Manifest:
    spec = {
        "replicas": replicas,
        "serviceName": service_name,
        "podManagementPolicy": "Parallel",
        "selector": {
            "matchLabels": selector(subject.name, pods.role, policy=pods.policy, pool=pods.pool)
        },
    }
    return workload(subject, installation, pods, kind="StatefulSet", name=name, spec=spec)


def pool_of(spec: MARLJobSpec, name: str) -> PoolSpec | None:
    return next((pool for pool in spec.pools if pool.name == name), None)


def template(role: Manifest | None, pool: PoolSpec | None) -> Manifest | None:
    own = pool.template if pool else None
    return laid_over(role, own) if role and own else role or own


def network(spec: MARLJobSpec, pool: PoolSpec | None) -> NetworkSpec:
    """Of an engine: `spec.network` is for those with GPUs."""
    return spec.network if pool and pool.gpus else NetworkSpec()


def resources(pool: PoolSpec | None, least: Manifest, network: NetworkSpec) -> Manifest:
    found = {key: dict(value) for key, value in least.items()}
    limits = {pool.gpu_resource: str(pool.gpus)} if pool and pool.gpus else {}
    if network.rdma_resource is not None:
        limits[network.rdma_resource] = "1"
    return {**found, "limits": limits} if limits else found


def placement(pool: PoolSpec | None, network: NetworkSpec) -> Manifest:
    found: Manifest = {}
    if network.host_network:  # its own dnsPolicy: the node's names are not the cluster's
        found |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if pool and pool.node_selector:
        found["nodeSelector"] = dict(pool.node_selector)
    if pool and pool.tolerations:
        found["tolerations"] = [
            one.model_dump(by_alias=True, exclude_none=True) for one in pool.tolerations
        ]
    return found
