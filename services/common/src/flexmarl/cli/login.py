"""Who asks an API server: by a token, where it is kept or by whom it is made, or a certificate."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from flexmarl.cli.console import CommandError
from flexmarl.cli.kubeconfig import Context, Entry
from flexmarl.cli.refusals import Object, parsed

BEFORE_EXPIRY = timedelta(seconds=10)


@dataclass(slots=True)
class Login:
    authorization: str = ""
    file: Path | None = None
    """A token that others renew."""
    plugin: Entry | None = None
    """A program that makes tokens, and is asked again when its last one ends."""
    certificate: tuple[bytes, bytes] | None = None
    """With its key."""
    expires: datetime | None = None
    _renewing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def headers(self) -> dict[str, str]:
        """Of a request that is made now. CommandError."""
        if self.file is not None:
            self.authorization = _token_in(self.file)
        async with self._renewing:
            if self.expires is not None and datetime.now(UTC) > self.expires - BEFORE_EXPIRY:
                await self.renew()
        return {"Authorization": self.authorization} if self.authorization else {}

    async def renew(self) -> None:
        """Ask the plugin. CommandError."""
        if self.plugin is None:
            return
        told = await _credentials(self.plugin)
        if told.get("token"):
            self.authorization = f"Bearer {told['token']}"
        if told.get("clientCertificateData"):
            keys = ("clientCertificateData", "clientKeyData")
            certificate, key = (str(told.get(key) or "").encode() for key in keys)
            self.certificate = certificate, key
        end = told.get("expirationTimestamp")
        self.expires = datetime.fromisoformat(end) if end else None


async def login_of(context: Context) -> Login:
    """In the order of `kubectl`. CommandError, OSError."""
    user, found = context.user, Login()
    certificate, key = user.data("client-certificate"), user.data("client-key")
    if certificate and key:
        found.certificate = certificate, key
    fields = user.fields
    if fields.get("tokenFile"):
        found.file = user.path("tokenFile")
    elif fields.get("token"):
        found.authorization = f"Bearer {fields['token']}"
    elif fields.get("username"):
        words = f"{fields['username']}:{fields.get('password', '')}"
        found.authorization = f"Basic {base64.b64encode(words.encode()).decode()}"
    elif fields.get("exec"):
        found.plugin = Entry(fields["exec"], user.folder)
        await found.renew()
    elif fields.get("auth-provider"):
        found.authorization = await _of_provider(context)
    return found


def _token_in(file: Path) -> str:
    try:
        return f"Bearer {file.read_text().strip()}"
    except OSError as error:
        raise CommandError(f"The token in {file} cannot be read: {error.strerror}") from error


async def _credentials(plugin: Entry) -> Object:
    """The status of its ExecCredential; what else it says is for the terminal. CommandError."""
    command = str(plugin.fields["command"])
    program = str(plugin.folder / command) if "/" in command else command
    asked = {"apiVersion": plugin.fields["apiVersion"], "kind": "ExecCredential"}
    about = {**asked, "spec": {"interactive": sys.stdin.isatty()}}
    given = {one["name"]: one["value"] for one in plugin.fields.get("env") or ()}
    login = f"{command}, by which your kubeconfig logs in,"
    try:
        process = await asyncio.create_subprocess_exec(
            *(program, *map(str, plugin.fields.get("args") or ())),
            env={**os.environ, **given, "KUBERNETES_EXEC_INFO": json.dumps(about)},
            stdout=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        hint = plugin.fields.get("installHint") or ""
        text = f"{login} cannot be run: {error.strerror}. {hint}".strip(" .")
        raise CommandError(text) from error
    written, _ = await process.communicate()  # however long: it may ask somebody to log in
    if process.returncode:
        raise CommandError(f"{login} ended with exit code {process.returncode}")
    told = parsed(written).get("status")
    if not isinstance(told, dict) or not (told.get("token") or told.get("clientCertificateData")):
        raise CommandError(f"{login} gave neither a token nor a certificate")
    return told


async def _of_provider(context: Context) -> str:
    """Of an older kind of login, which the Kubernetes client knows. CommandError."""
    from kubernetes.aio.client import Configuration
    from kubernetes.aio.config import ConfigException, load_kube_config_from_dict

    names = {"cluster": "here", "user": "me"}
    alone = {
        "current-context": "it",
        "contexts": [{"name": "it", "context": names}],
        "clusters": [{"name": "here", "cluster": {"server": "http://nowhere.invalid"}}],
        "users": [{"name": "me", "user": context.user.fields}],
    }
    settings = Configuration()
    try:
        await load_kube_config_from_dict(alone, client_configuration=settings)
    except ConfigException as error:
        raise CommandError(f"The login of your kubeconfig fails: {error}") from error
    return str(settings.api_key.get("BearerToken") or "")
