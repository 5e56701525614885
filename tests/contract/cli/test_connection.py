"""Who `flexmarl` is to a real API server: by a plugin's token, by a pod's account, with too few
rights; and what it loads to ask a question."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import pytest
from tests.contract.cli.conftest import Terminal
from tests.contract.controller.bad_jobs import sound
from tests.contract.controller.conftest import World
from typer.testing import CliRunner, Result

from flexmarl.cli.app import app
from flexmarl.cli.commands import target

PLUGIN = """
import json, pathlib, sys
first = pathlib.Path(__file__).with_suffix(".asked")
given = {"token": sys.argv[1]}
if not first.exists():
    first.touch()
    given = {"token": "too-old", "expirationTimestamp": "2026-01-01T00:00:00Z"}
print("welcome", file=sys.stderr)
told = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": given}
print(json.dumps(told))
"""


async def token_of(world: World, account: str) -> str:
    accounts = f"/api/v1/namespaces/{world.namespace}/serviceaccounts"
    await world.cluster.call("POST", accounts, body={"metadata": {"name": account}})
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    told = await world.cluster.call("POST", f"{accounts}/{account}/token", body=asked)
    return str(told["status"]["token"])


async def allow(world: World, account: str, resource: str, *verbs: str) -> None:
    """By a role of the namespace."""
    at = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{world.namespace}"
    group = "flexmarl.io" if resource == "marljobs" else ""
    rules = [{"apiGroups": [group], "resources": [resource], "verbs": [*verbs]}]
    name = {"metadata": {"name": f"{account}-{resource}"}}
    await world.cluster.call("POST", f"{at}/roles", body={**name, "rules": rules})
    binding = {
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": world.namespace}],
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "Role",
            "name": name["metadata"]["name"],
        },
    }
    await world.cluster.call("POST", f"{at}/rolebindings", body={**name, **binding})


def as_user(flexmarl: Terminal, user: dict[str, Any]) -> None:
    config = json.loads(flexmarl.kubeconfig.read_text())
    for one in config["users"]:
        one["user"] = user
    flexmarl.kubeconfig = flexmarl.folder / "kubeconfig"
    flexmarl.kubeconfig.write_text(json.dumps(config))


def server_of(kubeconfig: Path) -> SplitResult:
    config = json.loads(kubeconfig.read_text())
    return urlsplit(str(config["clusters"][0]["cluster"]["server"]))


async def test_a_plugin_that_logs_in_is_asked_again_when_its_token_ends(
    world: World, flexmarl: Terminal, capfd: pytest.CaptureFixture[str]
) -> None:
    (flexmarl.folder / "plugin.py").write_text(PLUGIN)
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": [str(flexmarl.folder / "plugin.py"), await token_of(world, "eve")],
    }
    as_user(flexmarl, {"exec": plugin})
    said = await flexmarl("status", "tiny")
    assert f"system:serviceaccount:{world.namespace}:eve" in said.err
    assert capfd.readouterr().err == "welcome\n" * 2


async def test_who_the_server_must_prove_to_be_is_what_the_kubeconfig_says(
    world: World, flexmarl: Terminal
) -> None:
    await world.submit(sound())
    whole = json.loads(flexmarl.kubeconfig.read_text())
    about = whole["clusters"][0]["cluster"]
    authority = {key: about.pop(key) for key in [*about] if key.startswith("certificate")}
    flexmarl.kubeconfig = flexmarl.folder / "kubeconfig"
    for more, says in (
        (authority | {"tls-server-name": "kubernetes.default"}, ""),
        (authority | {"tls-server-name": "elsewhere.invalid"}, "Hostname mismatch"),
        ({}, "unable to get local issuer certificate"),
        ({"insecure-skip-tls-verify": True}, ""),
    ):
        whole["clusters"][0]["cluster"] = about | more
        flexmarl.kubeconfig.write_text(json.dumps(whole))
        said = await flexmarl("status", "tiny")
        assert (said.code, says in said.err) == (int(bool(says)), True), said


async def test_what_one_may_not_is_named_by_verb_and_resource(
    world: World, flexmarl: Terminal
) -> None:
    await world.submit(sound())
    as_user(flexmarl, {"token": await token_of(world, "eve")})
    said = await flexmarl("status", "tiny")
    assert (said.code, "Ask for a role that may get marljobs.flexmarl.io there" in said.err) == (
        1,
        True,
    ), said
    await allow(world, "eve", "marljobs", "get")
    async with asyncio.timeout(30):
        while (await flexmarl("status", "tiny")).code:
            pass
    said = await flexmarl("status", "nobody")
    assert said.err == f'There is no MARLJob "nobody" in namespace {world.namespace}\n'
    said = await flexmarl("suspend", "tiny")
    assert (said.code, "may patch marljobs.flexmarl.io there" in said.err) == (1, True), said
    said = await flexmarl("logs", "tiny")
    assert (said.code, "may list pods there" in said.err) == (1, True), said
    said = await flexmarl("report", "tiny")
    assert (said.code, "may get persistentvolumeclaims there" in said.err) == (1, True), said


async def test_what_is_no_name_names_no_job(world: World, flexmarl: Terminal) -> None:
    await world.submit(sound())
    for odd in ("tiny/status", "..", "Tiny", "%2e"):
        said = await flexmarl("suspend", odd)
        assert (said.code, f'There is no MARLJob "{odd}"' in said.err) == (1, True), said


async def test_in_a_pod_its_own_account_and_namespace_are_taken(
    world: World, kubeconfig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.submit(sound())
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text(await token_of(world, "eve"))
    (account / "ca.crt").symlink_to(kubeconfig.parent / "ca.crt")
    (account / "namespace").write_text(world.namespace)
    await allow(world, "eve", "marljobs", "get")
    server = server_of(kubeconfig)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(target, "ACCOUNT", account)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", str(server.hostname))
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))

    def status() -> Result:
        return CliRunner().invoke(app, ["status", "tiny"])

    async with asyncio.timeout(30):
        while (said := await asyncio.to_thread(status)).exit_code:
            assert "may get marljobs" in said.stderr
    assert f"tiny   {world.namespace}" in said.stdout


async def test_what_asks_a_cluster_loads_neither_models_nor_numbers(
    world: World, flexmarl: Terminal
) -> None:
    await world.submit(sound())
    for command in ("status", "logs"):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-X", "importtime", "-m", "flexmarl.cli"),
            *(command, "tiny", "-n", world.namespace),
            env={**os.environ, **flexmarl.environment},
            cwd=flexmarl.folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, said = await process.communicate()
        assert process.returncode == 0, (out, said)
        loaded = {line.rpartition("|")[2].strip() for line in said.decode().splitlines()}
        assert "flexmarl.cli.cluster" in loaded
        heavy = ("torch", "numpy", "transformers", "grpc", "flexmarl.contracts.job")
        assert not loaded & {*heavy}, command
        models = ("kubernetes.aio.client.models.", "kubernetes.aio.client.api.")
        assert not [name for name in loaded if name.startswith(models)], command
