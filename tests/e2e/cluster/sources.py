"""Servers in the cluster to fetch from, a model for them, and the Secrets that open them."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from flexmarl.models.bytes_tokenizer import BytesTokenizer

from . import serving
from .jobs import Job
from .kube import restricted_pod
from .reading import Manifest
from .specs import CODE_FILES

SCRIPT = Path(serving.__file__)
SERVERS = Path(__file__).resolve().parents[2] / "contract/fetch/servers.py"
PORT = 8000
TOKEN = "a-token-that-reads"
HIDDEN = 16
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": BytesTokenizer.vocab_size,
    "hidden_size": HIDDEN,
    "intermediate_size": 2 * HIDDEN,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}
SERVE = f"""
import pathlib, sys, threading
sys.path.insert(0, "/hub")
from servers import Hub, serving_hub
files = {{path.name: path.read_bytes() for path in pathlib.Path("/model").iterdir()
         if path.is_file()}}
hub = Hub(files, frozenset({{"model.safetensors"}}), token={TOKEN!r})
with serving_hub(hub, ("0.0.0.0", {PORT})):
    threading.Event().wait()
"""


def model() -> dict[str, bytes]:
    """Files of a random Llama with the tokenizer of bytes."""
    import numpy as np
    from safetensors.numpy import save

    noise = np.random.default_rng(1)

    def matrix(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return (0.02 * noise.standard_normal(shape)).astype(np.float32)

    layer = "model.layers.0"
    tensors = {
        "model.embed_tokens.weight": matrix(BytesTokenizer.vocab_size, HIDDEN),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
        f"{layer}.input_layernorm.weight": np.ones(HIDDEN, np.float32),
        f"{layer}.post_attention_layernorm.weight": np.ones(HIDDEN, np.float32),
        **{f"{layer}.self_attn.{name}_proj.weight": matrix(HIDDEN, HIDDEN) for name in "qkvo"},
        f"{layer}.mlp.gate_proj.weight": matrix(2 * HIDDEN, HIDDEN),
        f"{layer}.mlp.up_proj.weight": matrix(2 * HIDDEN, HIDDEN),
        f"{layer}.mlp.down_proj.weight": matrix(HIDDEN, 2 * HIDDEN),
    }
    with tempfile.TemporaryDirectory() as folder:
        BytesTokenizer().save(Path(folder))
        files = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    files["config.json"] = json.dumps(CONFIG).encode()
    files["model.safetensors"] = save(tensors, {"format": "pt"})
    return files


def start(job: Job) -> str:
    """A hub with hf://org/model@v1 in the job's namespace, for who has the token; its URL."""
    folders = {"hub": {SERVERS.name: SERVERS.read_bytes()}, "model": model()}
    return f"http://{_serving(job, 'hub', ['-c', SERVE], folders, PORT)}:{PORT}"


def objects_and_code(job: Job, tasks: int) -> str:
    """S3 with s3://team/models/one, models/two and data/tasks.jsonl, and a repository with the
    team's code, in the pod `sources`; its address."""
    files = {
        f"models--{one}--{name}": data for one in ("one", "two") for name, data in model().items()
    }
    lines = (f'{{"question": "q{number}", "answer": "{number}"}}\n' for number in range(tasks))
    files["data--tasks.jsonl"] = "".join(lines).encode()
    folders = {
        "server": {SCRIPT.name: SCRIPT.read_bytes()},
        "objects": files,
        "code": {name: text.encode() for name, text in CODE_FILES.items()},
    }
    command = [f"/server/{SCRIPT.name}", "/objects", "/code"]
    return _serving(job, "sources", command, folders, serving.S3_PORT)


def keys(job: Job, name: str, url: str, token: str = TOKEN) -> None:
    """The Secret with which a job reads that hub."""
    _secret(job, name, {"HF_ENDPOINT": url, "HF_TOKEN": token})


def s3_keys(job: Job, name: str, address: str) -> dict[str, str]:
    """The Secret with which a job reads those objects, and what it holds."""
    held = {
        "AWS_ENDPOINT_URL": f"http://{address}:{serving.S3_PORT}",
        "AWS_ACCESS_KEY_ID": serving.KEY,
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_REGION": "us-east-1",
    }
    _secret(job, name, held)
    return held


def _serving(
    job: Job, name: str, python: list[str], folders: Mapping[str, Mapping[str, bytes]], port: int
) -> str:
    """A pod that serves at `port` and has these folders, each from a ConfigMap; its address."""
    pod = restricted_pod(name, job.images["slim"], command=["python3", *python])
    maps: list[Manifest] = []
    for folder, files in folders.items():
        encoded = {key: base64.b64encode(data).decode() for key, data in files.items()}
        metadata = {"name": f"{name}-{folder}"}
        maps.append(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "binaryData": encoded}
        )
        pod["spec"]["volumes"].append({"name": folder, "configMap": metadata})
        mount = {"name": folder, "mountPath": f"/{folder}"}
        pod["spec"]["containers"][0]["volumeMounts"].append(mount)
    probe = {"tcpSocket": {"port": port}, "periodSeconds": 1}
    pod["spec"]["containers"][0]["readinessProbe"] = probe
    job.cluster.apply(job.namespace, *maps, pod)
    job.cluster.ready(job.namespace, name)
    address: str = job.cluster.get(job.namespace, "pod", name)["status"]["podIP"]
    return address


def _secret(job: Job, name: str, held: Mapping[str, str]) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}}
    job.cluster.apply(job.namespace, {**secret, "stringData": dict(held)})
