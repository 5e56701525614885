"""What an API server that says no means, and what to do; pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from flexmarl.cli.console import FAILED, INVALID, CommandError

Object = dict[str, Any]
KINDS = {"marljobs": "job", "configmaps": "ConfigMap", "persistentvolumeclaims": "claim"}
FORBIDDEN = re.compile(r"cannot \S+ resource ")
"""How the API server says that a role lacks something; admission has other words."""


@dataclass(frozen=True, slots=True)
class Doing:
    """What was asked for."""

    verb: str
    resource: str
    name: str = ""

    @property
    def object(self) -> str:
        return f"the {KINDS.get(self.resource, 'pod')} {self.name}".strip()


class RefusalError(CommandError):
    """What the server answered instead; `status` 0: its answer broke off."""

    def __init__(self, text: str, status: int = 0, exit_code: int = FAILED) -> None:
        super().__init__(text, exit_code)
        self.status = status


class UnreachableError(CommandError):
    """The server did not answer."""


def refusal(status: int, told: Object, namespace: str, doing: Doing) -> RefusalError:
    says, about = str(told.get("message") or ""), details(told)
    causes = about.get("causes") or []
    writes = doing.verb in ("create", "patch") and "/" not in doing.resource
    jobs = doing.resource == "marljobs"
    exit_code = INVALID if writes and status in (400, 409, 422) else FAILED
    if status == 404 and about.get("kind") == "namespaces":
        exit_code = INVALID
        text = f"There is no namespace {namespace}: kubectl create namespace {namespace}"
    elif status == 404 and jobs and not about.get("name"):
        text = (
            "This cluster knows no MARLJob: install FlexMARL there first (helm install, see "
            "charts/flexmarl)"
        )
    elif status == 404:
        text = f"There is no {doing.object.removeprefix('the ')} any more"
    elif status == 401:
        text = "The cluster does not know you: renew the login of your kubeconfig"
    elif status == 403:
        text = _forbidden(says, namespace, doing)
    elif status == 409 and jobs and writes:
        fields = re.sub(r"\s+", " ", says)
        text = f"{fields}. Take these fields over with --force"
    elif status == 422 and causes:
        lines = [f"\n  {one.get('field') or 'spec'}: {one.get('message')}" for one in causes]
        text = f"The cluster refuses {_short(doing)}:{''.join(lines)}"
    elif status in (400, 422) and writes:
        said = says.rpartition("strict decoding error: ")[2]
        text = f"The cluster refuses {_short(doing)}: {said}"
    elif status == 400 and says:  # of logs that there are none: it names pod and container
        text = says
    else:
        about_pod = "" if jobs or not doing.name else f" about {doing.object}"
        text = f"The cluster answers {status}{about_pod}: {says or 'no reason given'}"
    return RefusalError(text, status, exit_code)


def _forbidden(says: str, namespace: str, doing: Doing) -> str:
    if "exceeded quota" in says or "failed quota" in says:
        return f"{says}. Raise that quota of namespace {namespace}, or delete what it counts"
    if "violates PodSecurity" in says:
        return (
            f"{says}. Give spec.roles.orchestrator.template what the namespace's level asks for, "
            "or lower the level"
        )
    if says and not FORBIDDEN.search(says):
        return f"The cluster refuses {doing.object}: {says}"
    jobs = doing.resource == "marljobs"
    role = f"may {doing.verb} {doing.resource}{'.flexmarl.io' if jobs else ''}"
    why = f": {says}" if says else ""
    return f"You may not do that in namespace {namespace}{why}. Ask for a role that {role} there"


def _short(doing: Doing) -> str:
    return "the job" if doing.resource == "marljobs" else doing.object


def parsed(body: bytes) -> Object:
    """An answer of an API server, or of what stands in front of it."""
    try:
        told = json.loads(body)
    except ValueError:
        return {"message": body.decode(errors="replace").strip()[:200]}
    return told if isinstance(told, dict) else {}


def details(told: Object) -> Object:
    found = told.get("details")
    return found if isinstance(found, dict) else {}
