"""Who a job's processes say they are: a token among themselves, a user of the shared store."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import structlog

from flexmarl.controller.cluster import Cluster
from flexmarl.controller.names import Manifest, child
from flexmarl.controller.owners import belongs
from flexmarl.controller.settings import ControllerSettings
from flexmarl.controller.store import JobUsers, url_for

log = structlog.get_logger()


class Accounts:
    """Of all jobs, remembered by uid."""

    def __init__(self, settings: ControllerSettings, cluster: Cluster) -> None:
        self._cluster, self._url = cluster, settings.store_url
        self._users: JobUsers | None = None
        if settings.store_url:
            installation = settings.installation_uid
            self._users = JobUsers(settings.store_url, installation, settings.namespaces)
        self._credentials: dict[str, tuple[str, str]] = {}
        """Token of the job's processes, password of its user in the store."""
        self._admitted: dict[str, str] = {}
        """Its user, who was let in."""

    def token(self, uid: str) -> str | None:
        """None: not known, or not any more."""
        found = self._credentials.get(uid)
        return found[0] if found else None

    async def credentials(self, job: Manifest) -> tuple[str, str]:
        """Token and password: those of the job's Secret, or new ones."""
        metadata = job["metadata"]
        uid = metadata["uid"]
        if uid not in self._credentials:
            name = child(metadata["name"], "job")
            found = await self._cluster.get("Secret", metadata["namespace"], name)
            own = found is not None and belongs(found, uid)
            data: dict[str, Any] = (found or {}).get("data") or {} if own else {}
            known = {key: base64.b64decode(value).decode() for key, value in data.items()}
            password = known.get("store-password") or secrets.token_urlsafe(24)
            token = known.get("token") or secrets.token_urlsafe(24)
            self._credentials[uid] = token, password
        return self._credentials[uid]

    async def store(self, job: Manifest, password: str, *, anew: bool) -> str:
        """URL of the installation's store for the job, whose user is let in; empty: there is none.

        `anew`: even if that was done. UnavailableError: it cannot be.
        """
        if self._users is None:
            return ""
        metadata = job["metadata"]
        uid, where = metadata["uid"], (metadata["namespace"], metadata["name"])
        user = self._users.user(*where, uid)
        if anew or uid not in self._admitted:
            await self._users.admit(*where, uid, password)
            self._admitted[uid] = user
        return url_for(self._url, user, password)

    def forget(self, uid: str) -> None:
        """The job is gone, or its Secret is, and whoever starts it again gets another password."""
        self._credentials.pop(uid, None)
        self._admitted.pop(uid, None)

    async def sweep(self, living: Callable[[], Iterable[Mapping[str, Any]]]) -> set[str]:
        """Remove from the store what is left of jobs that are gone. `living` is asked after the
        store was, or a job that comes meanwhile would lose its user. Which jobs' users the store
        has lost: it gets them again at the next look. UnavailableError."""
        if self._users is None:
            return set()
        admitted = {**self._admitted}  # before it is asked
        known = await self._users.users()
        places = (job["metadata"] for job in living())
        live = {self._users.user(at["namespace"], at["name"], at["uid"]) for at in places}
        if gone := known - live:
            await self._users.forget(gone)
            log.info("forgotten in the store", users=sorted(gone))
        lost = {uid for uid, user in admitted.items() if user not in known}
        for uid in lost:
            self._admitted.pop(uid, None)
        return lost
