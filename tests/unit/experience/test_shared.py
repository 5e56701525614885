from __future__ import annotations

from pathlib import Path

import pytest

from flexmarl.experience.shared import SharedStoreSettings, administrator, server_config, users
from flexmarl.runtime.errors import InvalidJobError


def test_the_administrator_is_the_only_user_of_a_new_server() -> None:
    text = users("admin", "secret", "")
    assert text.splitlines()[0] == "user default off"
    assert text.splitlines()[1].startswith("user admin on #")
    assert len(text.splitlines()) == 2
    assert "secret" not in text


def test_users_of_jobs_outlive_a_change_of_the_administrators_password() -> None:
    job = "user job-1 on #00 ~{a/b/c}:* -@all +get"
    saved = users("admin", "old", "") + f"{job}\n"
    changed = users("admin", "new", saved)
    assert changed == users("admin", "new", "") + f"{job}\n"
    assert users("admin", "new", changed) == changed


def test_a_job_may_have_a_name_that_begins_like_the_administrators() -> None:
    assert "user admin-2 on" in users("admin", "x", "user admin-2 on #00\n")


def test_the_url_names_the_administrator_and_the_port() -> None:
    assert administrator("redis://admin:s%20t@store.ns.svc:7000/0") == ("admin", "s t", 7000)
    assert administrator("redis://admin:s@store") == ("admin", "s", 6379)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "redis://store:6379",
        "redis://:secret@store",
        "redis://admin@store",
        "redis://default:secret@store",
        "redis://a%20b:secret@store",
        "unix://a:b@/x",
        "http://a:b@store",
    ],
)
def test_a_url_without_an_administrator_is_refused(url: str) -> None:
    with pytest.raises(InvalidJobError, match="FLEXMARL_STORE_URL"):
        administrator(url)


def test_the_server_never_evicts_and_logs_what_it_holds() -> None:
    settings = SharedStoreSettings(url="redis://", dir=Path("/data"), max_memory_mib=64)
    assert {
        ("port", "7000"),
        ("aclfile", "/data/users.acl"),
        ("dir", "/data"),
        ("appendonly", "yes"),
        ("appendfsync", "everysec"),
        ("maxmemory", "64mb"),
        ("maxmemory-policy", "noeviction"),
        ("auto-aof-rewrite-min-size", "64mb"),
        ("rdbcompression", "no"),
    } <= set(server_config(settings, 7000))
