"""A cluster as the commands see it: the MARLJobs and pods of one namespace, errors in words.

Plain requests: the Kubernetes client takes a second to load.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import aiohttp

from flexmarl.cli.login import Login
from flexmarl.cli.refusals import (
    Doing,
    Object,
    RefusalError,
    UnreachableError,
    details,
    parsed,
    refusal,
)
from flexmarl.contracts.api import API_VERSION
from flexmarl.contracts.problems import did_you_mean
from flexmarl.controller.names import JOB_LABEL, ROLE_LABEL

JOBS, CLAIMS, MAPS = "marljobs", "persistentvolumeclaims", "configmaps"
MANAGER = "flexmarl-cli"
SECONDS = 30.0
"""Deadline of a request."""
CONNECT_SECONDS = 10.0
"""Of these, until somebody is there at all."""
NAMED = 10
"""Jobs of a namespace, to who asked for another."""
NAME = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
METHODS = {"get": "GET", "list": "GET", "patch": "PATCH", "create": "POST", "delete": "DELETE"}
STDOUT, STDERR, OUTCOME = 1, 2, 3
"""Channels of a command in a pod."""
APPLY, MERGE = "application/apply-patch+yaml", "application/merge-patch+json"
Query = Sequence[tuple[str, str]]
STRICT: Query = (("fieldManager", MANAGER), ("fieldValidation", "Strict"))
FORCE: Query = (("force", "true"),)


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    login: Login
    options: Mapping[str, Any]
    """Of every request: how it is reached."""


class Cluster:
    """One namespace of a cluster."""

    def __init__(self, session: aiohttp.ClientSession, server: Server, namespace: str) -> None:
        self.namespace = namespace
        self._session, self._server = session, server

    async def job(self, name: str) -> Object:
        """The MARLJob; CommandError: there is none."""
        found = await self.find_job(name)
        if found is not None:
            return found
        others = await self._others(name)
        text = f'There is no MARLJob "{name}" in namespace {self.namespace}{others}'
        raise RefusalError(text, 404)

    async def find_job(self, name: str) -> Object | None:
        """The MARLJob, None if there is none of the name."""
        return await self._find(JOBS, name)

    async def apply_job(self, job: Object, *, force: bool = False, dry_run: bool = False) -> Object:
        """Server-side apply, unknown fields refused; the job as it then is."""
        query = [*STRICT, *(FORCE if force else ()), *([("dryRun", "All")] if dry_run else [])]
        doing = Doing("patch", JOBS, job["metadata"]["name"])
        return await self._call(doing, job, query=query, content=APPLY)

    async def change_job(self, name: str, spec: Object) -> Object:
        """The job with these fields of its spec changed."""
        doing = Doing("patch", JOBS, name)
        return await self._call(doing, {"spec": spec}, query=STRICT, content=MERGE)

    async def apply_config_map(self, config_map: Object) -> None:
        doing = Doing("patch", MAPS, config_map["metadata"]["name"])
        # By force: its name says what it holds.
        await self._call(doing, config_map, query=[*STRICT, *FORCE], content=APPLY)

    async def pods(self, job: str, role: str = "") -> list[Object]:
        """Those of a job that are there, oldest first."""
        selector = f"{JOB_LABEL}={job}" + (f",{ROLE_LABEL}={role}" if role else "")
        found = await self._call(Doing("list", "pods"), query=[("labelSelector", selector)])
        return sorted(found["items"], key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    async def claim(self, name: str) -> Object | None:
        return await self._find(CLAIMS, name)

    async def config_map(self, name: str) -> Object | None:
        return await self._find(MAPS, name)

    async def pod(self, name: str) -> Object | None:
        return await self._find("pods", name)

    async def create_pod(self, pod: Object) -> None:
        await self._call(Doing("create", "pods", pod["metadata"]["name"]), pod)

    async def delete_pod(self, name: str) -> None:
        await self._call(Doing("delete", "pods", name), may_lack=True)

    async def output(self, pod: str, container: str, command: list[str]) -> AsyncIterator[bytes]:
        """What a command writes in a pod, piece by piece; CommandError: it failed."""
        doing = Doing("create", "pods/exec", pod)
        query = [("container", container), ("stdout", "true"), ("stderr", "true")]
        query += [("command", word) for word in command]
        said, outcome = b"", b""
        headers = await self._server.login.headers()
        try:
            async with self._session.ws_connect(
                self._server.url + self._path(doing),
                params=query,
                headers=headers,
                protocols=["v4.channel.k8s.io"],
                heartbeat=SECONDS,
                **self._server.options,
            ) as socket:
                async for message in socket:
                    channel, data = message.data[0], message.data[1:]
                    if channel == STDOUT and data:
                        yield data
                    elif channel == STDERR:
                        said = (said + data)[-2000:]
                    elif channel == OUTCOME:
                        outcome += data
        except aiohttp.WSServerHandshakeError as error:
            # Without what the server says: a handshake has no body.
            raise refusal(error.status, {}, self.namespace, doing) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._unreachable(error) from error
        if parsed(outcome).get("status") != "Success":
            words = said.decode(errors="replace").strip() or parsed(outcome).get("message")
            raise RefusalError(f"{pod}: {words or 'the connection ended early'}")

    async def log(
        self,
        pod: str,
        container: str,
        *,
        follow: bool = False,
        tail: int | None = None,
        previous: bool = False,
        since: str = "",
    ) -> AsyncGenerator[str]:
        """Its lines; with `follow` each with its time, also those to come until it ends.

        `since`: such a time; lines of that very second may come again.
        """
        flags = {"follow": follow, "timestamps": follow, "previous": previous}
        query = [("container", container), *((name, "true") for name, on in flags.items() if on)]
        query += [] if tail is None else [("tailLines", str(tail))]
        query += [("sinceTime", since)] if since else []
        doing = Doing("get", "pods/log", pod)
        silence = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_SECONDS, sock_read=None if follow else SECONDS
        )
        async with self._answer("GET", self._path(doing), query, deadline=silence) as answer:
            try:
                if answer.status >= 400:
                    raise refusal(answer.status, parsed(await answer.read()), self.namespace, doing)
                async for line in _lines(answer.content):
                    yield line
            except (aiohttp.ClientError, TimeoutError) as error:
                raise RefusalError(f"the log broke off: {why(error)}") from error

    async def _others(self, name: str) -> str:
        """Which jobs there are, for who asked for one that is not."""
        try:
            there = await self._call(Doing("list", JOBS))
        except RefusalError as error:
            if error.status == 403:  # who may see one need not see all
                return ""
            raise
        names = [str(one["metadata"]["name"]) for one in there["items"]]
        shown = [*names[:NAMED], *([f"{len(names) - NAMED} more"] if len(names) > NAMED else [])]
        return did_you_mean(name, names) or f"; there is {', '.join(shown) or 'none yet'}"

    async def _find(self, resource: str, name: str) -> Object | None:
        if not NAME.fullmatch(name):  # the server would take it for a path
            return None
        return await self._call(Doing("get", resource, name), may_lack=True) or None

    async def _call(
        self,
        doing: Doing,
        body: Object | None = None,
        *,
        query: Query = (),
        content: str = "application/json",
        may_lack: bool = False,
    ) -> Object:
        """What the server says; empty where the object may lack and does."""
        method, path = METHODS[doing.verb], self._path(doing)
        deadline = aiohttp.ClientTimeout(total=SECONDS, sock_connect=CONNECT_SECONDS)
        async with self._answer(method, path, query, body, content, deadline=deadline) as answer:
            try:
                data = await answer.read()
            except (aiohttp.ClientError, TimeoutError) as error:
                raise self._unreachable(error) from error
        told = parsed(data)
        if answer.status == 404 and may_lack and details(told).get("name") == doing.name:
            return {}
        if answer.status >= 400:
            raise refusal(answer.status, told, self.namespace, doing)
        if "kind" not in told:  # a page to log in at, for one
            said = data[:100].decode(errors="replace").strip()
            raise RefusalError(f"{self._server.url} is no API server: it says {said}")
        return told

    @asynccontextmanager
    async def _answer(
        self,
        method: str,
        path: str,
        query: Query,
        body: Object | None = None,
        content: str = "application/json",
        *,
        deadline: aiohttp.ClientTimeout,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {"Accept": "application/json, */*", **await self._server.login.headers()}
        if body is not None:
            headers["Content-Type"] = content
        try:
            answer = await self._session.request(
                method,
                self._server.url + path,
                params=query,
                headers=headers,
                data=None if body is None else json.dumps(body),
                timeout=deadline,
                **self._server.options,
            )
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._unreachable(error) from error
        try:
            yield answer
        finally:
            answer.close()

    def _path(self, doing: Doing) -> str:
        resource, _, below = doing.resource.partition("/")
        group = f"apis/{API_VERSION}" if resource == JOBS else "api/v1"
        name = doing.name if doing.verb != "create" or below else ""
        words = (group, "namespaces", quote(self.namespace, ""), resource, quote(name, ""), below)
        return "".join(f"/{word}" for word in words if word)

    def _unreachable(self, error: Exception) -> UnreachableError:
        return UnreachableError(
            f"The cluster at {self._server.url} cannot be reached: {why(error)}. Check your "
            "kubeconfig and network"
        )


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[str]:
    """However long they are: aiohttp's own reader of lines has a limit."""
    rest: list[bytes] = []
    async for chunk in content.iter_any():
        first, *more = chunk.split(b"\n")
        rest.append(first)
        for line in more:
            yield b"".join(rest).decode(errors="replace")
            rest = [line]
    if any(rest):
        yield b"".join(rest).decode(errors="replace")


def why(error: Exception) -> str:
    """Without what Python objects stand for a connection."""
    match error:
        case aiohttp.ClientConnectorCertificateError():
            found = error.certificate_error
            return str(getattr(found, "verify_message", "") or found)
        case aiohttp.ClientConnectorError(os_error=OSError() as found):
            return str(found.strerror or found)
    return str(error) or f"no answer within {SECONDS:g} s"
