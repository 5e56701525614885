"""Whatever a Secret holds, a pod says what is wrong in its report, and nothing of what is in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.contract.fetch.servers import Hub, serving_git, upload
from tests.contract.preflight.test_command import run
from tests.ports import free_port

from flexmarl.contracts.preparation import Kind, Preparation, Report, Source
from flexmarl.preflight.preparing import prepare

SECRET = "hf_s3crets3cret"
MODEL = Source(uri="hf://org/model@v1", part="tokenizer", variables="SECRET0_")
DATA = Source(uri="s3://preflight-secrets/tasks.jsonl", variables="SECRET0_")
pytestmark = pytest.mark.usefixtures("quick", "cache")

ODD = st.sampled_from(["\n", "\r\n", " ", "\t", "\x7f", "ü", "\u2028", "\x1b[0m", '"', "\\"])


def prepared(source: Source, given: Mapping[str, str]) -> Report:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flexmarl.fetch.download.ATTEMPTS", 1)
        for name, value in given.items():
            patch.setenv(f"SECRET0_{name}", value)
        return prepare(Preparation(sources=[source], job="uid"))


def reasons(report: Report) -> list[tuple[str, Kind]]:
    return [(one.reason, one.kind) for one in report.findings]


@pytest.mark.parametrize("written", [f"{SECRET}\n", f" {SECRET}\r\n", f"\t{SECRET}"])
def test_blanks_around_a_token_are_not_sent(hub: Hub, written: str) -> None:
    hub.token = SECRET
    assert reasons(prepared(MODEL, {"HF_ENDPOINT": f"{hub.url}/\n", "HF_TOKEN": written})) == []


@given(middle=ODD, before=st.sampled_from(["", "\n", "'"]))
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_token_with_odd_characters_is_refused_and_not_repeated(
    hub: Hub, middle: str, before: str
) -> None:
    hub.token = "another"
    token = f"{before}{SECRET}{middle}{SECRET}"
    report = prepared(MODEL, {"HF_ENDPOINT": hub.url, "HF_TOKEN": token})
    assert reasons(report) == [("AccessDenied", Kind.HOPELESS)]
    assert SECRET not in report.text()


@pytest.mark.parametrize(
    "endpoint", ["hub.example", "http://m:80:80", "http://h h", f"https://me:{SECRET}@h", SECRET]
)
def test_a_hub_needs_an_address(endpoint: str) -> None:
    report = prepared(MODEL, {"HF_ENDPOINT": endpoint})
    assert reasons(report) == [("InvalidSetting", Kind.HOPELESS)]
    assert "HF_ENDPOINT" in report.findings[0].message
    assert report.findings[0].fetching
    assert SECRET not in report.text()


@pytest.fixture
def keys(s3_port: int) -> dict[str, str]:
    url = f"http://127.0.0.1:{s3_port}"
    upload(url, "preflight-secrets", {"tasks.jsonl": b"{}\n"})
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_SKIP_SIGNATURE": "false",
    }


@pytest.mark.parametrize("behind", ["\n", " ", "\r\n"])
def test_blanks_around_keys_do_no_harm(keys: dict[str, str], behind: str) -> None:
    given = {name.lower(): f"{value}{behind}" for name, value in keys.items()}
    assert reasons(prepared(DATA, given | {"aws_session_token": ""})) == []


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("AWS_ENDPOINT_URL", "127.0.0.1:9000", "InvalidSetting"),
        ("AWS_ENDPOINT_URL", "http://", "InvalidSetting"),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:99999", "InvalidSetting"),
        ("AWS_ENDPOINT_URL", f"http://me:{SECRET}@127.0.0.1:9000", "InvalidSetting"),
        ("AWS_SKIP_SIGNATURE", f"{SECRET} please", "InvalidSetting"),
        ("AWS_REGION", "us east", "InvalidSetting"),
        ("AWS_ACCESS_KEY_ID", f"{SECRET}\nx", "AccessDenied"),
        ("AWS_SECRET_ACCESS_KEY", f"{SECRET} x", "AccessDenied"),
        ("AWS_SESSION_TOKEN", f"{SECRET}ü", "AccessDenied"),
    ],
)
def test_what_a_client_of_s3_would_panic_at_is_a_finding(
    keys: dict[str, str], name: str, value: str, reason: str
) -> None:
    report = prepared(DATA, keys | {name: value})
    assert reasons(report) == [(reason, Kind.HOPELESS)]
    assert name in report.findings[0].message
    assert SECRET not in report.text()


@pytest.mark.parametrize("password", ["s3crét €", "s3cret:@/", " s3cret\n"])
def test_a_password_of_git_may_be_any_text(tmp_path: Path, password: str) -> None:
    """Of one that is right nothing is asked here but that it arrives."""
    with serving_git(tmp_path, password=password.strip()) as url:
        source = Source(uri=f"git+{url}/none.git", variables="SECRET0_")
        report = prepared(source, {"username": "me", "password": password})
        assert reasons(report) == [("SourceNotFound", Kind.HOPELESS)]
        wrong = prepared(source, {"username": "me", "password": f"x{password}x"})
    assert reasons(wrong) == [("AccessDenied", Kind.HOPELESS)]
    assert password.strip() not in wrong.text()


@pytest.mark.parametrize("kind", [Exception, BaseException])
def test_what_nobody_foresaw_is_a_finding_without_its_words(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], kind: type[BaseException]
) -> None:
    unforeseen = type("PanicError", (kind,), {"__module__": "somewhere"})

    def fetch(*_: object, **__: object) -> None:
        raise unforeseen(f"Illegal header value b'{SECRET}'")

    monkeypatch.setattr("flexmarl.fetch.fetching.fetch", fetch)
    report = prepare(Preparation(sources=[MODEL]))
    assert reasons(report) == [("UnexpectedError", Kind.PASSING)]
    assert "PanicError at test_secrets.py:" in report.findings[0].message
    assert report.findings[0].fetching
    assert SECRET not in report.text() + "".join(capfd.readouterr())


def test_who_stops_a_pod_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("flexmarl.fetch.fetching.fetch", fetch)
    with pytest.raises(KeyboardInterrupt):
        prepare(Preparation(sources=[MODEL]))


def test_a_malformed_url_of_the_store_is_no_traceback(tmp_path: Path) -> None:
    plan = Preparation(store=True)
    code, report = run(tmp_path, plan, FLEXMARL_STORE_URL=f"redis://user:{SECRET}/x@host")
    assert (code, reasons(report)) == (3, [("StoreURLInvalid", Kind.HOPELESS)])
    assert SECRET not in report.text()
    port = free_port()
    code, report = run(tmp_path, plan, FLEXMARL_STORE_URL=f"  redis://127.0.0.1:{port}/0\n")
    assert (code, reasons(report)) == (75, [("StoreUnreachable", Kind.PASSING)])


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=300))
def test_a_claim_is_looked_at_whatever_its_uri(rest: str) -> None:
    report = prepare(Preparation(mounted=[f"pvc://{rest}"]))
    assert {one.kind for one in report.findings} <= {Kind.HOPELESS}
