"""Policies behind an OpenAI-compatible chat completions API: judges, opponents; never trained."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Annotated, Any, Self

import httpx
import numpy as np
import structlog
from prometheus_client import Counter
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flexmarl.contracts.policy import OpenAIArgs
from flexmarl.rollout.conversation import Generated
from flexmarl.rollout.policies import TurnCall
from flexmarl.runtime.errors import InvalidJobError, UnavailableError

log = structlog.get_logger()
RETRIES = Counter("flexmarl_rollout_external_retries_total", "Calls to external APIs made again.")

ATTEMPTS = 6
FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 20.0
MOST_CALLS = 64
SHOWN_CHARACTERS = 300
_NONE = np.zeros(0, dtype=np.int32)
_NO_LOGPROBS = np.zeros(0, dtype=np.float32)


class _Wire(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Message(_Wire):
    content: str | None = None


class _Choice(_Wire):
    message: _Message
    finish_reason: str | None = None


class _Usage(_Wire):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Completion(_Wire):
    choices: Annotated[list[_Choice], Field(min_length=1)]
    usage: _Usage | None = None


class ExternalPolicy:
    """One external API. Use as `async with`; it holds the connections."""

    def __init__(
        self,
        name: str,
        args: OpenAIArgs,
        api_key: str | None,
        *,
        attempts: int = ATTEMPTS,
        first_wait: float = FIRST_WAIT_SECONDS,
    ) -> None:
        """InvalidJobError: `api_key`, out of a Secret, cannot be one."""
        self.name = name
        self._args = args
        api_key = (api_key or "").strip()
        if api_key and not (api_key.isascii() and api_key.isprintable() and " " not in api_key):
            raise InvalidJobError(  # a client would quote it
                f"{self._field}: the key in {args.api_key_env} holds characters that no key has, "
                "such as line ends"
            )
        self._url = args.base_url.rstrip("/") + "/chat/completions"
        self._attempts, self._first_wait = attempts, first_wait
        self._http = httpx.AsyncClient(
            headers={"authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(args.timeout, pool=None),  # waiting for a free one is no failure
            limits=httpx.Limits(max_connections=MOST_CALLS),
        )

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._http.__aexit__(kind, error, trace)

    async def generate(self, call: TurnCall) -> Generated:
        """UnavailableError: it did not answer. InvalidJobError: it never will, as configured."""
        body = {
            "model": self._args.model,
            "messages": [{"role": role, "content": content} for role, content in call.history],
            "max_tokens": call.sampling.max_tokens,
            "temperature": call.sampling.temperature,
            "top_p": call.sampling.top_p,
            "seed": call.seed,
        }
        wait, failure = self._first_wait, ""
        for attempt in range(self._attempts):
            if attempt:
                RETRIES.inc()
                call.away = True
                await asyncio.sleep(wait)
                wait = min(2 * wait, LONGEST_WAIT_SECONDS)
            try:
                response = await self._http.post(self._url, json=body)
            except httpx.TransportError as error:
                failure = f"{type(error).__name__}: {error}".rstrip(": ")
                continue
            if response.is_success:
                return self._generated(response)
            failure = f"{response.status_code}: {_words(response)}"
            if response.status_code != httpx.codes.TOO_MANY_REQUESTS and not (
                response.is_server_error or response.status_code == httpx.codes.REQUEST_TIMEOUT
            ):
                raise InvalidJobError(f"{self._field}: {self._url} answered {failure}")
            wait = max(wait, _retry_after(response))
        raise UnavailableError(
            f"{self._field}: {self._url} failed {self._attempts} times; at last {failure}"
        )

    @property
    def _field(self) -> str:
        return f"engine.openai of policy {self.name!r}"

    def _generated(self, response: httpx.Response) -> Generated:
        try:
            completion = _Completion.model_validate_json(response.content)
        except ValidationError as error:
            raise InvalidJobError(
                f"{self._field}: {self._url} did not answer with a chat completion: "
                f"{_words(response)}"
            ) from error
        choice, usage = completion.choices[0], completion.usage or _Usage()
        return Generated(
            text=choice.message.content or "",
            token_ids=_NONE,
            logprobs=_NO_LOGPROBS,
            finish_reason=choice.finish_reason or "stop",
            versions=(),
            version=0,
            prompt_tokens=usage.prompt_tokens,
            sampled_tokens=usage.completion_tokens,
        )


def _words(response: httpx.Response) -> str:
    """What the server said went wrong, in a line."""
    try:
        said: Any = response.json()
    except ValueError:
        said = response.text
    if isinstance(said, dict) and isinstance(said.get("error"), dict):
        said = said["error"].get("message", said)
    text = " ".join(str(said).split())
    return text[:SHOWN_CHARACTERS] or "nothing"


def _retry_after(response: httpx.Response) -> float:
    """Seconds that the server asks to wait, within the bound; 0: it does not say."""
    try:
        asked = float(response.headers.get("retry-after", "0"))
    except ValueError:  # a date
        return 0.0
    return min(max(asked, 0.0), LONGEST_WAIT_SECONDS)
