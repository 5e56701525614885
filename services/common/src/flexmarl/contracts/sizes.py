"""How large a policy is in training, as far as its job tells; pure."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from flexmarl.contracts.policy import PolicySpec
from flexmarl.contracts.sources import Dtype

VOCABULARY = 261
"""Of bytes://."""
PARAMETER_BYTES = {Dtype.FLOAT32: 4 + 8, Dtype.BFLOAT16: 2 + 4 + 8, Dtype.FLOAT64: 8 + 16}
"""Weights and AdamW's two moments, of bfloat16 the float32 master too."""

PROCESS_BYTES = 512 << 20
"""Memory that a process with torch takes before it has a model."""


def random_parameters(policy: PolicySpec) -> int:
    """Of a `random://llama` model; without its vocabulary where a tokenizer of files has it. 0: the
    model is none, or its sizes are nonsense, which whoever builds it says."""
    parts = urlsplit(policy.model.uri if policy.model else "")
    if parts.scheme != "random":
        return 0
    given = {key: values[0] for key, values in parse_qs(parts.query).items()}
    try:
        hidden, layers, heads = (int(given[key]) for key in ("hidden", "layers", "heads"))
        kv_heads = int(given.get("kv_heads", heads))
        intermediate = int(given.get("intermediate", 4 * hidden))
        kv_hidden = hidden // heads * kv_heads
    except (KeyError, ValueError, ZeroDivisionError):
        return 0
    layer = 2 * hidden * hidden + 2 * hidden * kv_hidden + 3 * hidden * intermediate + 2 * hidden
    vocabulary = VOCABULARY if policy.tokenizer in (None, "bytes://") else 0
    tables = 1 if given.get("tie", "true") == "true" else 2
    return tables * vocabulary * hidden + layers * layer + hidden
