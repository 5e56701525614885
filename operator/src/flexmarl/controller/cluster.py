"""The API server: the few calls that the controller makes, each with a deadline.

Plain objects in and out. Which objects, and when, is not decided here.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from kubernetes.aio import client, config

from flexmarl.controller import partial
from flexmarl.controller.names import MANAGER, Manifest

SECONDS = 30.0
PAGE = 500
UNFIT = "failed to create typed patch object"
"""How the words begin with which an API server answers 500 to an apply that its schema forbids."""
REMOVED = b"unable to retrieve container logs for "
"""How that begins which a kubelet answers, with 200, for a container that it has removed."""
PLURALS = {
    "MARLJob": ("apis/flexmarl.io/v1alpha1", "marljobs"),
    "Namespace": ("api/v1", "namespaces"),
    "Pod": ("api/v1", "pods"),
    "Node": ("api/v1", "nodes"),
    "ConfigMap": ("api/v1", "configmaps"),
    "Secret": ("api/v1", "secrets"),
    "Service": ("api/v1", "services"),
    "ServiceAccount": ("api/v1", "serviceaccounts"),
    "PersistentVolumeClaim": ("api/v1", "persistentvolumeclaims"),
    "Event": ("api/v1", "events"),
    "Deployment": ("apis/apps/v1", "deployments"),
    "StatefulSet": ("apis/apps/v1", "statefulsets"),
    "Job": ("apis/batch/v1", "jobs"),
    "NetworkPolicy": ("apis/networking.k8s.io/v1", "networkpolicies"),
}


class RefusedError(Exception):
    """The API server did not do it, or (504) did not answer."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(status, reason, message)
        self.status, self.reason, self.message = status, reason, message

    @property
    def passing(self) -> bool:
        """The same may be done later."""
        later = self.status in (409, 429) or self.status >= 500
        return later and not self.message.startswith(UNFIT)

    def __str__(self) -> str:
        return self.message


class Cluster:
    def __init__(self, api: Any) -> None:
        self._api = api

    async def apply(self, manifest: Manifest) -> Manifest:
        """Server-side apply as `flexmarl`; what identifies the object then. RefusedError."""
        return partial.item(
            await self._raw(
                "PATCH",
                path_to(manifest),
                query=[("fieldManager", MANAGER), ("force", "true")],
                body=manifest,
                content="application/apply-patch+yaml",
                accept=partial.ONE,
            )
        )

    async def try_to_make(self, manifest: Manifest) -> None:
        """Nothing is made. RefusedError: it never will be, and why, unknown fields among it; 409:
        there is one of that name."""
        query = [("fieldManager", MANAGER), ("dryRun", "All"), ("fieldValidation", "Strict")]
        await self.call("POST", path_to(manifest).rpartition("/")[0], query=query, body=manifest)

    async def scale(self, kind: str, namespace: str, name: str, replicas: int) -> Manifest:
        return await self.call(
            "PATCH",
            path(kind, namespace, name),
            query=[("fieldManager", MANAGER)],
            body={"spec": {"replicas": replicas}},
            content="application/merge-patch+json",
        )

    async def write_status(self, job: Mapping[str, Any], status: Manifest) -> Manifest:
        """Of the job as it was read. RefusedError, 409: it has changed, or is another by now.

        Of a status the API server compares the version, and not the uid.
        """
        metadata = job["metadata"]
        body = {
            "apiVersion": job["apiVersion"],
            "kind": job["kind"],
            "metadata": {key: metadata[key] for key in ("name", "namespace", "resourceVersion")},
            "status": status,
        }
        return await self.call(
            "PATCH",
            f"{path('MARLJob', metadata['namespace'], metadata['name'])}/status",
            query=[("fieldManager", f"{MANAGER}-status"), ("force", "true")],
            body=body,
            content="application/apply-patch+yaml",
        )

    async def get(self, kind: str, namespace: str | None, name: str) -> Manifest | None:
        try:
            return await self.call("GET", path(kind, namespace, name))
        except RefusedError as error:
            if error.status == 404:
                return None
            raise

    async def is_there(self, at: str) -> bool:
        try:
            await self.call("GET", at)
        except RefusedError as error:
            if error.status == 404:
                return False
            raise
        return True

    async def pages(
        self,
        kind: str,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        metadata_only: bool = False,
    ) -> AsyncIterator[list[Manifest]]:
        """All of them, some hundreds at a time; `kind` and `apiVersion` set in each.

        `metadata_only`: of that what `partial` reads.
        """
        more, accept = "", partial.MANY if metadata_only else "application/json"
        while True:
            query = [("limit", str(PAGE))]
            query += [("labelSelector", labels)] if labels else []
            query += [("fieldSelector", fields)] if fields else []
            query += [("continue", more)] if more else []
            data = await self._raw("GET", path(kind, namespace), query=query, accept=accept)
            page = partial.items(data) if metadata_only else json.loads(data)
            group = PLURALS[kind][0].split("/", 1)[1]
            for item in page["items"]:
                item["metadata"].pop("managedFields", None)  # large, and nobody looks at it
                item |= {"kind": kind, "apiVersion": group}
            yield page["items"]
            more = page["metadata"].get("continue", "")
            if not more:
                return

    async def listed(self, kind: str, namespace: str | None = None, **which: Any) -> list[Manifest]:
        """All of them at once; `which` as for `pages`."""
        return [item async for page in self.pages(kind, namespace, **which) for item in page]

    async def delete(self, kind: str, namespace: str, name: str, uid: str = "") -> None:
        """With what it owns; nothing happens when it is gone already, or is not of that uid."""
        how: Manifest = {"propagationPolicy": "Background"}
        if uid:
            how["preconditions"] = {"uid": uid}
        try:
            await self.call("DELETE", path(kind, namespace, name), body=how)
        except RefusedError as error:
            if error.status != 404 and not (uid and error.status == 409):
                raise

    async def made(self, manifest: Manifest) -> Manifest:
        """The object, created unless it is there already; then as it is. RefusedError."""
        at = path_to(manifest)
        try:
            return await self.call("POST", at.rpartition("/")[0], body=manifest)
        except RefusedError as error:
            if error.status != 409:
                raise
        return await self.call("GET", at)

    async def remove(self, manifest: Manifest) -> None:
        """Nothing happens when it is gone already, or nobody knows its kind."""
        try:
            await self.call("DELETE", path_to(manifest))
        except RefusedError as error:
            if error.status != 404:
                raise

    async def create(self, manifest: Manifest) -> None:
        at = path(manifest["kind"], manifest["metadata"]["namespace"])
        await self.call("POST", at, body=manifest, content="application/json")

    async def log(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        previous: bool,
        lines: int,
        most: int,
        seconds: float,
    ) -> bytes:
        """The end of a container's output; empty when there is none to be had."""
        query = [("container", container), ("tailLines", str(lines)), ("limitBytes", str(most))]
        query += [("previous", "true")] if previous else []
        at = f"{path('Pod', namespace, pod)}/log"
        try:
            found = await self._raw("GET", at, query=query, seconds=seconds)
        except RefusedError:
            return b""
        return b"" if found.startswith(REMOVED) else found

    async def call(self, method: str, at: str, **more: Any) -> Manifest:
        """Any request; what is answered as JSON. RefusedError."""
        found: Manifest = json.loads(await self._raw(method, at, **more) or b"{}")
        return found

    async def _raw(
        self,
        method: str,
        at: str,
        *,
        query: list[tuple[str, str]] | None = None,
        body: Manifest | None = None,
        content: str = "application/json",
        accept: str = "application/json",
        seconds: float = SECONDS,
    ) -> bytes:
        method, url, headers, _, _ = await self._api.param_serialize(
            method,
            at,
            query_params=query or [],
            header_params={"Accept": accept, "Content-Type": content},
            auth_settings=["BearerToken"],
        )
        try:  # the body is plain: it need not be searched for models
            response = await self._api.call_api(
                method, url, headers, body, _request_timeout=seconds
            )
            data: bytes = await response.read()
        except (TimeoutError, aiohttp.ClientError) as error:
            text = str(error) or f"no answer within {seconds:g} s"
            raise RefusedError(504, "Timeout", f"the API server: {text}") from error
        if response.status >= 400:
            raise _refused(response.status, data)
        return data


def path(kind: str, namespace: str | None, name: str = "") -> str:
    group, plural = PLURALS[kind]
    inside = f"/namespaces/{namespace}" if namespace else ""
    return f"/{group}{inside}/{plural}{'/' + name if name else ''}"


def path_to(manifest: Mapping[str, Any]) -> str:
    """PodGroups come from several APIs, so theirs is read from the object."""
    metadata = manifest["metadata"]
    if manifest["kind"] == "PodGroup":
        where = f"/apis/{manifest['apiVersion']}/namespaces/{metadata['namespace']}"
        return f"{where}/podgroups/{metadata['name']}"
    return path(manifest["kind"], metadata["namespace"], metadata["name"])


def _refused(status: int, data: bytes) -> RefusedError:
    try:
        said = json.loads(data)
        return RefusedError(status, str(said.get("reason", "")), str(said.get("message", "")))
    except ValueError:
        return RefusedError(status, "", data.decode(errors="replace")[:500])


@asynccontextmanager
async def connection(kubeconfig: str | None = None) -> AsyncIterator[client.ApiClient]:
    """To the cluster in which this runs, else to that of `kubeconfig` or of KUBECONFIG."""
    settings = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=settings)
    except config.ConfigException:
        await config.load_kube_config(kubeconfig, client_configuration=settings)
    # Else every request looks for a proxy and for ~/.netrc, in threads.
    settings.proxy = settings.proxy or _proxy(settings.host)
    settings.client_session_kwargs = {"trust_env": False}
    async with client.ApiClient(settings) as api:
        yield api


def _proxy(url: str) -> str | None:
    """That of the environment for requests to `url`."""
    at = urlsplit(url)
    return None if proxy_bypass(at.hostname or "") else getproxies().get(at.scheme)


@asynccontextmanager
async def connected() -> AsyncIterator[Cluster]:
    async with connection() as api:
        yield Cluster(api)
