"""What a job makes, takes for its own and deletes, and what it leaves alone."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from tests.contract.controller.conftest import IMAGES, World
from tests.contract.controller.test_looks import job

from flexmarl.controller import reconcile
from flexmarl.controller.asking import Orchestrators
from flexmarl.controller.cache import Key
from flexmarl.controller.cluster import RefusedError
from flexmarl.controller.names import JOB_LABEL, Manifest
from flexmarl.controller.reconcile import Reconciler
from flexmarl.controller.render import WORKLOADS, render
from flexmarl.controller.render.parts import Subject
from flexmarl.controller.settings import ControllerSettings

CLAIM = "persistentvolumeclaims"


async def make(world: World, kind: str, name: str, **body: Any) -> None:
    """An object of a user's."""
    metadata = {"name": name, "namespace": world.namespace, **body.pop("metadata", {})}
    group = "apps/v1" if kind == "Deployment" else "v1"
    await world.cluster.create({"apiVersion": group, "kind": kind, "metadata": metadata, **body})


async def uid_of(world: World, key: Key) -> str:
    found = await world.cluster.call("GET", f"{world.path}/{key.name}")
    return str(found["metadata"]["uid"])


async def test_the_files_of_a_job_outlive_its_suspension(world: World) -> None:
    """`flexmarl apply` makes them, labels them and has the job own them."""
    key = await world.submit(job(code={"configMap": "tiny-files-1"}))
    reference = {
        "apiVersion": "flexmarl.io/v1alpha1",
        "kind": "MARLJob",
        "name": key.name,
        "uid": await uid_of(world, key),
    }
    about = {"labels": {JOB_LABEL: key.name}, "ownerReferences": [reference]}
    await make(world, "ConfigMap", "tiny-files-1", metadata=about)
    await world.look(key)
    await world.change(f"{world.path}/tiny", {"spec": {"suspend": True}})
    await world.until(key, "Suspended")
    assert await world.names("ConfigMap") == {"tiny-files-1"}
    await world.change(f"{world.path}/tiny", {"spec": {"suspend": False}})
    await world.until(key, "PodsNotReady")
    await world.cluster.delete("MARLJob", world.namespace, "tiny")
    await world.gone("ConfigMap")


async def test_what_a_user_labels_as_a_jobs_is_not_the_jobs(world: World) -> None:
    """A label lets it through the NetworkPolicy."""
    marks = {JOB_LABEL: "tiny", "app": "debug"}
    template = {
        "metadata": {"labels": marks},
        "spec": {"containers": [{"name": "main", "image": "registry.invalid/debug"}]},
    }
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "debug"}}, "template": template}
    await make(world, "Deployment", "debug", metadata={"labels": marks}, spec=spec)
    key = await world.submit(job())
    await world.look(key)
    await world.change(f"{world.path}/tiny", {"spec": {"suspend": True}})
    await world.until(key, "Suspended")
    assert await world.names("Deployment") == {"debug"}
    assert len(await world.names("Pod")) == 1


@pytest.mark.parametrize("kind", ["Secret", "Service", "Deployment"])
async def test_what_has_a_name_of_a_jobs_object_is_neither_changed_nor_deleted(
    world: World, kind: str
) -> None:
    name = {"Secret": "tiny-job", "Service": "tiny-trainers", "Deployment": "tiny-worker"}[kind]
    ports = {"ports": [{"port": 80}], "selector": {"app": "mine"}}
    template = {
        "metadata": {"labels": {"app": "mine"}},
        "spec": {"containers": [{"name": "main", "image": "registry.invalid/mine"}]},
    }
    bodies: dict[str, Manifest] = {
        "Secret": {"data": {"token": "bWluZQ=="}},
        "Service": {"spec": ports},
        "Deployment": {
            "spec": {"selector": {"matchLabels": {"app": "mine"}}, "template": template}
        },
    }
    await make(world, kind, name, **bodies[kind])
    before = await world.cluster.get(kind, world.namespace, name)
    assert before is not None
    key = await world.submit(job())
    status = await world.look(key)
    assert (status["phase"], status["reason"]) == ("Starting", "NameTaken")
    assert f"{kind} {name} is there already and belongs to nobody" in status["message"]
    assert not [made for each in WORKLOADS for made in await world.names(each) if made != name]
    after = await world.cluster.get(kind, world.namespace, name)
    assert after is not None
    for part in ("data", "spec"):
        assert after.get(part) == before.get(part)
    assert "ownerReferences" not in after["metadata"]
    await world.cluster.delete(kind, world.namespace, name)
    assert (await world.until(key, "PodsNotReady"))["phase"] == "Starting"


async def test_a_job_submitted_again_waits_until_all_of_the_one_before_is_gone(
    world: World,
) -> None:
    template = {"metadata": {"labels": {"team": "blue"}}}
    made = job(roles={"worker": {"template": template}})
    key = await world.submit(made)
    await world.until(key, "PodsNotReady")
    await world.cluster.delete("MARLJob", world.namespace, "tiny")
    await world.submit(job(steps=7, roles={"worker": {"template": template}}))
    uid = await uid_of(world, key)
    status = await world.until(key, "PodsNotReady")
    assert status["phase"] == "Starting"
    owners = {
        reference["uid"]
        for kind in (*WORKLOADS, "Service", "ConfigMap", "Secret")
        for one in await world.cluster.listed(kind, world.namespace, labels=JOB_LABEL)
        for reference in one["metadata"]["ownerReferences"]
    }
    assert owners == {uid}


async def test_orphans_of_an_earlier_job_are_not_taken_over(world: World) -> None:
    key = await world.submit(job())
    await world.until(key, "PodsNotReady")
    orphan = [("propagationPolicy", "Orphan")]
    await world.cluster.call("DELETE", f"{world.path}/tiny", query=orphan)
    await world.gone("MARLJob")
    await world.submit(job())
    status = await world.until(key, "NameTaken")
    assert "belongs to nobody; delete it" in status["message"]


async def test_jobs_whose_objects_would_have_one_name_do_not_share_it(world: World) -> None:
    """The engine of `x` in `a-engine`, and of `engine-x` in `a`: both are a-engine-engine-x."""
    first, second = job(), job()
    for made, name, policy in ((first, "a-engine", "x"), (second, "a", "engine-x")):
        made["metadata"]["name"] = name
        made["spec"]["policies"][0]["name"] = policy
        made["spec"]["agents"][0]["policy"] = policy
    one, other = await world.submit(first), await world.submit(second)
    await world.until(one, "PodsNotReady")
    status = await world.until(other, "NameTaken")
    assert "belongs to MARLJob a-engine" in status["message"]


async def test_a_kept_claim_serves_the_next_job_as_it_is(world: World) -> None:
    key = await world.submit(job(checkpoint={"claim": {"size": "20Gi"}}))
    await world.look(key)
    await world.cluster.delete("MARLJob", world.namespace, "tiny")
    await world.gone("Secret")
    await world.submit(job())  # asks for 10Gi, as nobody has said anything
    await world.until(key, "PodsNotReady")
    claim = await world.cluster.get("PersistentVolumeClaim", world.namespace, "tiny-run")
    assert claim is not None
    assert claim["spec"]["resources"]["requests"]["storage"] == "20Gi"


async def test_a_kept_claim_of_another_kind_is_told_before_anything_is_made(world: World) -> None:
    key = await world.submit(job())
    await world.look(key)
    await world.cluster.delete("MARLJob", world.namespace, "tiny")
    await world.gone("Secret", "StatefulSet")
    await world.submit(job(checkpoint={"claim": {"accessMode": "ReadWriteMany"}}))
    status = await world.until(key, "ClaimDiffers")
    assert "PersistentVolumeClaim tiny-run was kept" in status["message"]
    assert "is ReadWriteOnce, not ReadWriteMany; delete it" in status["message"]
    assert not await world.names("StatefulSet")
    await world.cluster.call("DELETE", f"/api/v1/namespaces/{world.namespace}/{CLAIM}/tiny-run")
    await world.until(key, "PodsNotReady")


async def test_two_controllers_at_once_give_a_job_one_token(world: World) -> None:
    """For a moment, when the pod of one is evicted."""
    key = await world.submit(job())
    uid = await uid_of(world, key)
    settings = ControllerSettings(images=IMAGES, namespaces=[world.namespace])
    async with Orchestrators() as asker:
        other = Reconciler(settings, world.cluster, world.cache, asker)
        await world.read()
        made = world.cache.objects(key).job
        assert made is not None
        await other._accounts.credentials(made)  # has looked for the Secret, and will make it
        await world.reconciler.look(key)
        token = world.reconciler._accounts.token(uid)
        with pytest.raises(RefusedError, match="another"):
            await other.look(key)
        await other.look(key)
        assert token == other._accounts.token(uid)
    secret = await world.cluster.get("Secret", world.namespace, "tiny-job")
    assert secret is not None
    assert base64.b64decode(secret["data"]["token"]).decode() == token


async def test_a_job_of_an_earlier_installation_is_left_alone_and_costs_no_rendering(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await world.submit(job())
    await world.until(key, "PodsNotReady")
    images = {name: f"{image}:next" for name, image in IMAGES.items()}
    settings = ControllerSettings(images=images, namespaces=[world.namespace])
    async with Orchestrators() as orchestrators:
        later = Reconciler(settings, world.cluster, world.cache, orchestrators)
        before = await world.cluster.get("StatefulSet", world.namespace, "tiny-trainer")
        await world.read()
        await later.look(key)
        rendered: list[Subject] = []

        def rendering(subject: Subject, *given: Any) -> list[Manifest]:
            rendered.append(subject)
            return render(subject, *given)

        monkeypatch.setattr(reconcile, "render", rendering)
        for _ in range(3):
            await world.read()
            await later.look(key)
        assert rendered == []
        at = f"/apis/apps/v1/namespaces/{world.namespace}/statefulsets/tiny-trainer"
        await world.change(at, {"spec": {"replicas": 3}})
        await world.read()
        await later.look(key)
        after = await world.cluster.get("StatefulSet", world.namespace, "tiny-trainer")
    assert before is not None
    assert after is not None
    assert after["spec"] == before["spec"]
