from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.cluster.api import DIES_WITH_US
from tests.contract.fetch.servers import Hub, serving_hub
from tests.ports import free_port

KIB = 1024


@pytest.fixture(scope="session")
def model() -> dict[str, bytes]:
    """A repository: two files of weights, small ones, one that nobody wants."""
    noise = random.Random(1)
    return {
        "config.json": b'{"model_type": "llama"}',
        "tokenizer.json": noise.randbytes(3000),
        "model-1.safetensors": noise.randbytes(400 * KIB),
        "model-2.safetensors": noise.randbytes(300 * KIB),
        "pytorch_model.bin": b"a pickle",
    }


@pytest.fixture
def hub(model: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    lfs = frozenset(name for name in model if name.endswith("safetensors"))
    with serving_hub(Hub(dict(model), lfs)) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield served


@pytest.fixture(scope="session")
def s3_port() -> Iterator[int]:
    port = free_port()
    server = subprocess.Popen(
        [*DIES_WITH_US, sys.executable, "-W", "ignore", "-m", "moto.server", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(600):
            try:
                httpx.get(f"http://127.0.0.1:{port}/moto-api/", timeout=5)
                break
            except httpx.TransportError:
                assert server.poll() is None
                time.sleep(0.1)
        yield port
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def s3(s3_port: int, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"http://127.0.0.1:{s3_port}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    return url


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries follow each other at once."""
    monkeypatch.setattr("flexmarl.fetch.download.FIRST_PAUSE", 0.001)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "flexmarl"
