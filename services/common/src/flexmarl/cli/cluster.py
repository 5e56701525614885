"""A cluster as the commands see it: the MARLJobs and pods of one namespace, errors in words."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aiohttp
from kubernetes.aio import client, config
from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.stream.ws_client import (
    ERROR_CHANNEL,
    STDERR_CHANNEL,
    STDOUT_CHANNEL,
    WsApiClient,
)

from flexmarl.cli.console import FAILED, INVALID, CommandError
from flexmarl.cli.pack import JOB_LABEL
from flexmarl.contracts.job import GROUP, VERSION

PLURAL = "marljobs"
MANAGER = "flexmarl-cli"
SECONDS = 30
"""Deadline of a request."""
Object = dict[str, Any]
Call = Callable[..., Coroutine[Any, Any, aiohttp.ClientResponse]]
ResultT = TypeVar("ResultT")


class Cluster:
    """One namespace of the cluster that a kubeconfig names."""

    def __init__(self, api: client.ApiClient, namespace: str) -> None:
        self.namespace = namespace
        self._api = api
        self._jobs = client.CustomObjectsApi(api)
        self._core = client.CoreV1Api(api)

    async def job(self, name: str) -> Object:
        """The MARLJob; CommandError: there is none."""
        found = await self.find_job(name)
        if found is not None:
            return found
        there = await self._answer(
            self._jobs.list_namespaced_custom_object_without_preload_content,
            *(GROUP, VERSION, self.namespace, PLURAL),
        )
        names = [one["metadata"]["name"] for one in there["items"]]
        raise CommandError(
            f'There is no MARLJob "{name}" in namespace {self.namespace}; '
            f"there is {', '.join(names) or 'none yet'}"
        )

    async def find_job(self, name: str) -> Object | None:
        """The MARLJob, None if there is none of the name."""
        return (
            await self._answer(
                self._jobs.get_namespaced_custom_object_without_preload_content,
                *(GROUP, VERSION, self.namespace, PLURAL, name),
                missing=name,
            )
            or None
        )

    async def apply_job(self, job: Object, *, force: bool = False, dry_run: bool = False) -> Object:
        """Server-side apply, unknown fields refused; the job as it then is."""
        return await self._answer(
            self._jobs.patch_namespaced_custom_object_without_preload_content,
            *(GROUP, VERSION, self.namespace, PLURAL, job["metadata"]["name"], job),
            field_manager=MANAGER,
            field_validation="Strict",
            force=force,
            _content_type="application/apply-patch+yaml",
            **({"dry_run": "All"} if dry_run else {}),
        )

    async def change_job(self, name: str, spec: Object) -> Object:
        """The job with these fields of its spec changed."""
        return await self._answer(
            self._jobs.patch_namespaced_custom_object_without_preload_content,
            *(GROUP, VERSION, self.namespace, PLURAL, name, {"spec": spec}),
            field_manager=MANAGER,
            field_validation="Strict",
            _content_type="application/merge-patch+json",
        )

    async def apply_config_map(self, config_map: Object) -> None:
        await self._answer(
            self._core.patch_namespaced_config_map_without_preload_content,
            *(config_map["metadata"]["name"], self.namespace, config_map),
            field_manager=MANAGER,
            field_validation="Strict",
            force=True,  # its name says what it holds
            _content_type="application/apply-patch+yaml",
        )

    async def pods(self, job: str, role: str = "") -> list[Object]:
        """Those of a job that are there, oldest first."""
        selector = f"{JOB_LABEL}={job}" + (f",flexmarl.io/role={role}" if role else "")
        found = await self._answer(
            self._core.list_namespaced_pod_without_preload_content,
            self.namespace,
            label_selector=selector,
        )
        return sorted(found["items"], key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    async def claim(self, name: str) -> Object | None:
        call = self._core.read_namespaced_persistent_volume_claim_without_preload_content
        return await self._answer(call, name, self.namespace, missing=name) or None

    async def config_map(self, name: str) -> Object | None:
        call = self._core.read_namespaced_config_map_without_preload_content
        return await self._answer(call, name, self.namespace, missing=name) or None

    async def pod(self, name: str) -> Object:
        call = self._core.read_namespaced_pod_without_preload_content
        return await self._answer(call, name, self.namespace)

    async def create_pod(self, pod: Object) -> None:
        call = self._core.create_namespaced_pod_without_preload_content
        await self._answer(call, self.namespace, pod)

    async def delete_pod(self, name: str) -> None:
        call = self._core.delete_namespaced_pod_without_preload_content
        await self._answer(call, name, self.namespace, missing=name)

    async def output(self, pod: str, container: str, command: list[str]) -> AsyncIterator[bytes]:
        """What a command writes in a pod, piece by piece; CommandError: it failed."""
        query = [("container", container), ("stdout", "true"), ("stderr", "true")]
        query += [("command", word) for word in command]
        _, url, headers, *_ = await self._api.param_serialize(
            "GET",
            f"/api/v1/namespaces/{self.namespace}/pods/{pod}/exec",
            query_params=query,
            auth_settings=["BearerToken"],
        )
        said, outcome = b"", b""
        try:
            async with (
                WsApiClient(self._api.configuration, heartbeat=SECONDS) as api,  # type: ignore[no-untyped-call]
                await api.request("GET", url, headers=headers, _preload_content=False) as socket,
            ):
                async for message in socket:
                    channel, data = message.data[0], message.data[1:]
                    if channel == STDOUT_CHANNEL and data:
                        yield data
                    elif channel == STDERR_CHANNEL:
                        said = (said + data)[-2000:]
                    elif channel == ERROR_CHANNEL:
                        outcome += data
        except aiohttp.WSServerHandshakeError as error:
            raise refusal(error.status, {"message": error.message}, self.namespace) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._unreachable(error) from error
        if parsed(outcome).get("status") != "Success":
            words = said.decode(errors="replace").strip() or parsed(outcome).get("message")
            raise CommandError(f"{pod}: {words or 'the connection ended early'}")

    async def log(
        self, pod: str, container: str, *, follow: bool, tail: int | None, previous: bool
    ) -> AsyncIterator[str]:
        """Its lines; with `follow` also those to come, until the container ends."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=SECONDS) if follow else SECONDS
        answer = await self._ask(
            self._core.read_namespaced_pod_log_without_preload_content,
            *(pod, self.namespace),
            container=container,
            follow=follow,
            previous=previous,
            _request_timeout=timeout,
            **({} if tail is None else {"tail_lines": tail}),
        )
        try:
            if answer.status >= 400:
                raise refusal(answer.status, parsed(await answer.read()), self.namespace)
            async for line in answer.content:
                yield line.decode(errors="replace").rstrip("\n")
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._unreachable(error) from error
        finally:
            answer.close()

    async def _answer(
        self, call: Call, *arguments: Any, missing: str | None = None, **options: Any
    ) -> Object:
        """What the server says; empty where nothing of the name `missing` is there."""
        answer = await self._ask(call, *arguments, **options)
        try:
            told = parsed(await answer.read())
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._unreachable(error) from error
        finally:
            answer.release()
        if answer.status == 404 and missing and missing == _details(told).get("name"):
            return {}
        if answer.status >= 400:
            raise refusal(answer.status, told, self.namespace)
        return told

    async def _ask(self, call: Call, *arguments: Any, **options: Any) -> aiohttp.ClientResponse:
        options.setdefault("_request_timeout", SECONDS)
        try:
            return await call(*arguments, **options)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> CommandError:
        host = self._api.configuration.host
        why = str(error) or f"no answer within {SECONDS} s"
        return CommandError(
            f"The cluster at {host} cannot be reached: {why}. Check your kubeconfig and network"
        )


def refusal(status: int, told: Object, namespace: str) -> CommandError:
    """What an API server that said no means, and what to do."""
    says, details = str(told.get("message", "")), _details(told)
    causes = details.get("causes") or []
    exit_code = INVALID if status in (400, 409, 422) else FAILED
    if status == 404 and details.get("kind") == "namespaces":
        exit_code = INVALID
        text = f"There is no namespace {namespace}: kubectl create namespace {namespace}"
    elif status == 404 and not details.get("name"):
        text = (
            "This cluster knows no MARLJob: install FlexMARL there first (helm install, see "
            "charts/flexmarl)"
        )
    elif status == 401:
        text = "The cluster does not know you: renew the login of your kubeconfig"
    elif status == 403:
        text = (
            f"You may not do that in namespace {namespace}: {says}. Ask for a role that edits "
            "marljobs.flexmarl.io there"
        )
    elif status == 409:
        fields = re.sub(r"\s+", " ", says)
        text = f"{fields}. Take these fields over with --force"
    elif status == 422 and causes:
        lines = [f"\n  {one.get('field') or 'spec'}: {one.get('message')}" for one in causes]
        text = f"The cluster refuses the job:{''.join(lines)}"
    elif status in (400, 422):
        text = f"The cluster refuses the job: {says.rpartition('strict decoding error: ')[2]}"
    else:
        text = f"The cluster answers {status}: {says or 'no reason given'}"
    return CommandError(text, exit_code)


@asynccontextmanager
async def connected(namespace: str | None, context: str | None) -> AsyncIterator[Cluster]:
    """The cluster of a kubeconfig's context; CommandError: there is none."""
    try:
        contexts, active = config.list_kube_config_contexts()  # type: ignore[no-untyped-call]
        chosen = next((one for one in contexts if one["name"] == context), active)
        if context and chosen["name"] != context:
            names = ", ".join(one["name"] for one in contexts)
            raise CommandError(f'Your kubeconfig has no context "{context}"; it has {names}')
        api = await config.new_client_from_config(  # type: ignore[no-untyped-call]
            context=context, persist_config=False
        )
    except (ConfigException, OSError) as error:
        raise CommandError(
            f"There is no cluster to ask: {error}. Set KUBECONFIG, or look at a run of this machine"
        ) from error
    async with api:
        yield Cluster(api, namespace or chosen["context"].get("namespace") or "default")


def ask(call: Coroutine[Any, Any, ResultT]) -> ResultT:
    return asyncio.run(call)


def parsed(body: bytes) -> Object:
    """An answer of an API server, or of what stands in front of it."""
    try:
        told = json.loads(body)
    except ValueError:
        return {"message": body.decode(errors="replace").strip()[:200]}
    return told if isinstance(told, dict) else {}


def _details(told: Object) -> Object:
    details = told.get("details")
    return details if isinstance(details, dict) else {}
