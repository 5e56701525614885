"""A hub in the cluster, and a model for it: the server that the contract tests of fetching use."""

from __future__ import annotations

import base64
import json
import tempfile
from pathlib import Path

from flexmarl.models.bytes_tokenizer import BytesTokenizer

from .jobs import Job
from .kube import Manifest, restricted_pod

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
    files = {name: base64.b64encode(data).decode() for name, data in model().items()}
    maps: list[Manifest] = [
        {"kind": "ConfigMap", "metadata": {"name": "hub"}, "data": {SERVERS.name: text()}},
        {"kind": "ConfigMap", "metadata": {"name": "model"}, "binaryData": files},
    ]
    pod = restricted_pod("hub", job.images["slim"], command=["python3", "-c", SERVE])
    for name in ("hub", "model"):
        pod["spec"]["volumes"].append({"name": name, "configMap": {"name": name}})
        mount = {"name": name, "mountPath": f"/{name}"}
        pod["spec"]["containers"][0]["volumeMounts"].append(mount)
    probe = {"tcpSocket": {"port": PORT}, "periodSeconds": 1}
    pod["spec"]["containers"][0]["readinessProbe"] = probe
    job.cluster.apply(job.namespace, *({"apiVersion": "v1", **one} for one in maps), pod)
    job.cluster.ready(job.namespace, "hub")
    address = job.cluster.get(job.namespace, "pod", "hub")["status"]["podIP"]
    return f"http://{address}:{PORT}"


def text() -> str:
    return SERVERS.read_text()


def keys(job: Job, name: str, url: str, token: str = TOKEN) -> None:
    """The Secret with which a job reads that hub."""
    secret: Manifest = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "stringData": {"HF_ENDPOINT": url, "HF_TOKEN": token},
    }
    job.cluster.apply(job.namespace, secret)
