"""Policies behind an OpenAI-compatible chat completions API: judges, opponents; never trained.

One odd answer must not end a job. What may pass is asked for again; a request that is refused is
the program's (a prompt that is too long, or that a filter does not like); an answer that is no
completion again and again is the group's trouble. Only an API that has never answered, and refuses
key or address whatever it is asked, means that the job is wrong.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Annotated, Any, Self

import httpx
import numpy as np
import structlog
from prometheus_client import Counter
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from flexmarl.contracts.policy import OpenAIArgs
from flexmarl.rollout.conversation import Generated
from flexmarl.rollout.engine_pool import BAD_ANSWERS
from flexmarl.rollout.partial import BadAnswerError
from flexmarl.rollout.policies import TurnCall
from flexmarl.runtime.errors import (
    FlexMARLError,
    InvalidJobError,
    InvalidRequestError,
    UnavailableError,
)

log = structlog.get_logger()
RETRIES = Counter("flexmarl_rollout_external_retries_total", "Calls to external APIs made again.")

ATTEMPTS = 6
FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 20.0
MOST_CALLS = 64
MISCONFIGURED = frozenset({401, 402, 403, 404, 405, 407, 410})
"""The key or the address is wrong, as redirects say too; but gateways say it of prompts as well."""
PROBE = [{"role": "user", "content": "Hello"}]
PASSING = frozenset({408, 409, 425, 429})
"""Beside all of the server's own errors."""
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
    prompt_tokens: NonNegativeInt | None = None
    completion_tokens: NonNegativeInt | None = None


class _Completion(_Wire):
    choices: Annotated[list[_Choice], Field(min_length=1)]
    usage: _Usage | None = None


class _BusyError(UnavailableError):
    """For so many seconds, as it says."""

    def __init__(self, said: str, seconds: float) -> None:
        super().__init__(said)
        self.seconds = seconds


class _MisconfiguredError(Exception):
    """An answer that says so."""


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
        self._answered = False
        """At least once, so that key and address were right."""
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
        """UnavailableError: it did not answer. BadAnswerError: with no completion, each time.

        InvalidRequestError: it refuses this prompt. InvalidJobError: it refuses any, as configured.
        """
        body = {
            "model": self._args.model,
            "messages": [{"role": role, "content": content} for role, content in call.history],
            "max_tokens": call.sampling.max_tokens,
            "temperature": call.sampling.temperature,
            "top_p": call.sampling.top_p,
            "seed": call.seed,
        }
        probe = body | {"messages": PROBE, "max_tokens": 1}
        wait = self._first_wait
        error: FlexMARLError = UnavailableError("nobody was asked")
        for attempt in range(self._attempts):
            if attempt:
                RETRIES.inc()
                call.away = True
                await asyncio.sleep(wait)
                wait = min(2 * wait, LONGEST_WAIT_SECONDS)
            try:
                return await self._asked(body)
            except (UnavailableError, BadAnswerError) as failure:
                error = failure
            except _MisconfiguredError as failure:
                error = await self._doubted(failure, probe)
            if isinstance(error, _BusyError):
                wait = max(wait, error.seconds)
        said = f"{self._field}: {self._url} failed {self._attempts} times; at last {error}"
        if isinstance(error, BadAnswerError):
            BAD_ANSWERS.inc()
            raise BadAnswerError(said) from error
        raise UnavailableError(said) from error

    async def _asked(self, body: dict[str, Any]) -> Generated:
        """UnavailableError, BadAnswerError: another try may do. InvalidRequestError: it refuses
        this. _MisconfiguredError: or anything."""
        try:
            response = await self._http.post(self._url, json=body)
        except httpx.RequestError as failure:
            said = f"{type(failure).__name__}: {failure}".rstrip(": ")
            raise UnavailableError(said) from failure
        if response.is_success:
            return self._generated(response)
        status, said = response.status_code, f"{response.status_code}: {_words(response)}"
        if response.is_server_error or status in PASSING:
            raise _BusyError(said, _retry_after(response))
        if status in MISCONFIGURED or not response.is_client_error:
            raise _MisconfiguredError(said)
        raise InvalidRequestError(f"{self._field}: {self._url} answered {said}")

    async def _doubted(
        self, refusal: _MisconfiguredError, probe: dict[str, Any]
    ) -> UnavailableError:
        """What a refusal of key or address is worth: InvalidRequestError, InvalidJobError, or that
        another try may do."""
        said = f"{self._field}: {self._url} answered {refusal}"
        try:
            await self._asked(probe)
        except _MisconfiguredError:
            if not self._answered:
                raise InvalidJobError(said) from refusal
        except (UnavailableError, BadAnswerError):
            pass
        except InvalidRequestError:
            raise InvalidRequestError(said) from refusal
        else:
            raise InvalidRequestError(said) from refusal
        return UnavailableError(str(refusal))

    @property
    def _field(self) -> str:
        return f"engine.openai of policy {self.name!r}"

    def _generated(self, response: httpx.Response) -> Generated:
        try:
            completion = _Completion.model_validate_json(response.content)
        except ValidationError as error:
            raise BadAnswerError(f"no chat completion: {_words(response)}") from error
        self._answered = True
        choice, usage = completion.choices[0], completion.usage or _Usage()
        return Generated(
            text=choice.message.content or "",
            token_ids=_NONE,
            logprobs=_NO_LOGPROBS,
            finish_reason=choice.finish_reason or "stop",
            versions=(),
            version=0,
            prompt_tokens=usage.prompt_tokens or 0,
            sampled_tokens=usage.completion_tokens or 0,
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
