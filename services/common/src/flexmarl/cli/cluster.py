"""A cluster as the commands see it: the MARLJobs and pods of one namespace, errors in words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aiohttp
import yaml
from kubernetes.aio import client, config
from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.stream.ws_client import (
    ERROR_CHANNEL,
    STDERR_CHANNEL,
    STDOUT_CHANNEL,
    WsApiClient,
)

from flexmarl.cli.commands.target import has_kubeconfig, kubeconfig
from flexmarl.cli.console import CommandError
from flexmarl.cli.pack import JOB_LABEL
from flexmarl.cli.refusals import Doing, Object, RefusalError, details, parsed, refusal
from flexmarl.contracts.job import GROUP, VERSION

PLURAL = "marljobs"
MANAGER = "flexmarl-cli"
SECONDS = 30
"""Deadline of a request."""
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
            Doing("list", PLURAL),
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
                Doing("get", PLURAL, name),
                self._jobs.get_namespaced_custom_object_without_preload_content,
                *(GROUP, VERSION, self.namespace, PLURAL, name),
                may_lack=True,
            )
            or None
        )

    async def apply_job(self, job: Object, *, force: bool = False, dry_run: bool = False) -> Object:
        """Server-side apply, unknown fields refused; the job as it then is."""
        options: Object = {"dry_run": "All"} if dry_run else {}
        return await self._answer(
            Doing("patch", PLURAL, job["metadata"]["name"]),
            self._jobs.patch_namespaced_custom_object_without_preload_content,
            *(GROUP, VERSION, self.namespace, PLURAL, job["metadata"]["name"], job),
            field_manager=MANAGER,
            field_validation="Strict",
            force=force,
            _content_type="application/apply-patch+yaml",
            **options,
        )

    async def change_job(self, name: str, spec: Object) -> Object:
        """The job with these fields of its spec changed."""
        return await self._answer(
            Doing("patch", PLURAL, name),
            self._jobs.patch_namespaced_custom_object_without_preload_content,
            *(GROUP, VERSION, self.namespace, PLURAL, name, {"spec": spec}),
            field_manager=MANAGER,
            field_validation="Strict",
            _content_type="application/merge-patch+json",
        )

    async def apply_config_map(self, config_map: Object) -> None:
        await self._answer(
            Doing("patch", "configmaps", config_map["metadata"]["name"]),
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
            Doing("list", "pods"),
            self._core.list_namespaced_pod_without_preload_content,
            self.namespace,
            label_selector=selector,
        )
        return sorted(found["items"], key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    async def claim(self, name: str) -> Object | None:
        call = self._core.read_namespaced_persistent_volume_claim_without_preload_content
        doing = Doing("get", "persistentvolumeclaims", name)
        return await self._answer(doing, call, name, self.namespace, may_lack=True) or None

    async def config_map(self, name: str) -> Object | None:
        call = self._core.read_namespaced_config_map_without_preload_content
        doing = Doing("get", "configmaps", name)
        return await self._answer(doing, call, name, self.namespace, may_lack=True) or None

    async def pod(self, name: str) -> Object | None:
        call = self._core.read_namespaced_pod_without_preload_content
        doing = Doing("get", "pods", name)
        return await self._answer(doing, call, name, self.namespace, may_lack=True) or None

    async def create_pod(self, pod: Object) -> None:
        call = self._core.create_namespaced_pod_without_preload_content
        doing = Doing("create", "pods", pod["metadata"]["name"])
        await self._answer(doing, call, self.namespace, pod)

    async def delete_pod(self, name: str) -> None:
        call = self._core.delete_namespaced_pod_without_preload_content
        doing = Doing("delete", "pods", name)
        await self._answer(doing, call, name, self.namespace, may_lack=True)

    async def output(self, pod: str, container: str, command: list[str]) -> AsyncIterator[bytes]:
        """What a command writes in a pod, piece by piece; CommandError: it failed."""
        doing = Doing("create", "pods/exec", pod)
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
            # Without what the server says: a handshake has no body.
            raise refusal(error.status, {}, self.namespace, doing) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._unreachable(error) from error
        if parsed(outcome).get("status") != "Success":
            words = said.decode(errors="replace").strip() or parsed(outcome).get("message")
            raise CommandError(f"{pod}: {words or 'the connection ended early'}")

    async def log(
        self, pod: str, container: str, *, follow: bool, tail: int | None, previous: bool
    ) -> AsyncIterator[str]:
        """Its lines; with `follow` also those to come, until the container ends."""
        flags = {"follow": follow, "previous": previous}
        query = [("container", container), *((name, "true") for name, on in flags.items() if on)]
        query += [] if tail is None else [("tailLines", str(tail))]
        silence = None if follow else SECONDS
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=SECONDS, sock_read=silence)
        where = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/log"
        answer = await self._ask(self._get, where, query, _request_timeout=timeout)
        try:
            if answer.status >= 400:
                doing = Doing("get", "pods/log", pod)
                raise refusal(answer.status, parsed(await answer.read()), self.namespace, doing)
            async for line in _lines(answer.content):
                yield line
        except (aiohttp.ClientError, TimeoutError) as error:
            raise RefusalError(f"the log broke off: {_why(error)}") from error
        finally:
            answer.close()

    async def _answer(
        self, doing: Doing, call: Call, *arguments: Any, may_lack: bool = False, **options: Any
    ) -> Object:
        """What the server says; empty where the object may lack and does."""
        answer = await self._ask(call, *arguments, **options)
        try:
            told = parsed(await answer.read())
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._unreachable(error) from error
        finally:
            answer.release()
        if answer.status == 404 and may_lack and details(told).get("name") == doing.name:
            return {}
        if answer.status >= 400:
            raise refusal(answer.status, told, self.namespace, doing)
        return told

    async def _get(
        self, where: str, query: list[tuple[str, str]], *, _request_timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        """With a deadline of its own kind, which the generated calls do not take."""
        request = await self._api.param_serialize(
            "GET", where, query_params=query, auth_settings=["BearerToken"]
        )
        answer = await self._api.call_api(*request, _request_timeout=_request_timeout)
        response: aiohttp.ClientResponse = answer.response
        return response

    async def _ask(self, call: Call, *arguments: Any, **options: Any) -> aiohttp.ClientResponse:
        options.setdefault("_request_timeout", SECONDS)
        try:
            return await call(*arguments, **options)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> CommandError:
        host = self._api.configuration.host
        return CommandError(
            f"The cluster at {host} cannot be reached: {_why(error)}. Check your kubeconfig and "
            "network"
        )


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[str]:
    """However long they are: aiohttp's own reader of lines has a limit."""
    rest = b""
    async for chunk in content.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


def _why(error: Exception) -> str:
    return str(error) or f"no answer within {SECONDS} s"


@asynccontextmanager
async def connected(namespace: str | None, context: str | None) -> AsyncIterator[Cluster]:
    """The cluster of a kubeconfig's context; CommandError: there is none."""
    place = kubeconfig()
    if not has_kubeconfig():
        raise CommandError(
            f"There is no cluster to ask: no kubeconfig at {place}. Set KUBECONFIG, or look at a "
            "run of this machine"
        )
    try:
        contexts, active = config.list_kube_config_contexts(place)  # type: ignore[no-untyped-call]
        chosen = next((one for one in contexts if one["name"] == context), active)
        if context and chosen["name"] != context:
            names = ", ".join(one["name"] for one in contexts)
            raise CommandError(f'Your kubeconfig has no context "{context}"; it has {names}')
        api = await config.new_client_from_config(  # type: ignore[no-untyped-call]
            place, context=context, persist_config=False
        )
    except (ConfigException, OSError) as error:
        raise CommandError(
            f"The kubeconfig {place} names no cluster to ask: {error}. Mend it, or set KUBECONFIG "
            "to another"
        ) from error
    except (yaml.YAMLError, TypeError, KeyError, ValueError, AttributeError) as error:
        # The client takes a file for granted that is whole.
        why = f": {' '.join(str(error).split())}" if isinstance(error, yaml.YAMLError) else ""
        raise CommandError(
            f"The kubeconfig {place} is empty or damaged{why}. Mend it, or set KUBECONFIG to "
            "another"
        ) from error
    async with api:
        yield Cluster(api, namespace or chosen["context"].get("namespace") or "default")


def ask(call: Coroutine[Any, Any, ResultT]) -> ResultT:
    return asyncio.run(call)
