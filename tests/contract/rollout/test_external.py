from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import pytest
from tests.contract.rollout.test_selection import counted

from flexmarl.contracts.policy import OpenAIArgs
from flexmarl.rollout.external import ExternalPolicy
from flexmarl.rollout.partial import BadAnswerError
from flexmarl.rollout.policies import SamplingChoice, TurnCall
from flexmarl.runtime.errors import InvalidJobError, InvalidRequestError, UnavailableError

CALL = TurnCall((("system", "s"), ("user", "hi")), None, SamplingChoice(16, 0.5, 0.9, 0), 5)
ANSWER = {
    "choices": [{"message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
}


def _text(said: Any) -> str:
    return said if isinstance(said, str) else json.dumps(said)


class Api:
    """A chat completions API that answers from a list; the last answer repeats."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any, dict[str, str]]] = [(200, ANSWER, {})]
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.hangs = threading.Event()
        self.hangs.set()
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                headers = {key.lower(): value for key, value in self.headers.items()}
                api.requests.append((self.path, headers, body))
                api.hangs.wait(10)
                status, said, extra = api.answers.pop(0) if len(api.answers) > 1 else api.answers[0]
                data = said if isinstance(said, bytes) else _text(said).encode()
                self.send_response(status)
                for key, value in {**extra, "content-length": str(len(data))}.items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        class Server(ThreadingHTTPServer):
            request_queue_size = 64

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # a client that gave up

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"

    def policy(self, **changes: Any) -> ExternalPolicy:
        args = OpenAIArgs(base_url=self.url, model="judge-1", timeout=5)
        return ExternalPolicy(
            "judge", args.model_copy(update=changes), "key", attempts=3, first_wait=0.01
        )


@pytest.fixture
def api() -> Iterator[Api]:
    made = Api()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.hangs.set()
    made.server.shutdown()
    made.server.server_close()
    thread.join()


@pytest.mark.parametrize("key", ["key\n", " key\r\n", "key"])
async def test_blanks_around_a_key_are_not_sent(api: Api, key: str) -> None:
    args = OpenAIArgs(base_url=api.url, model="judge-1", timeout=5)
    async with ExternalPolicy("judge", args, key) as policy:
        await policy.generate(CALL)
    assert api.requests[0][1]["authorization"] == "Bearer key"


@pytest.mark.parametrize("odd", ["\n", " ", "\u00fc", "\x7f", "\u2028"])
def test_what_is_no_key_is_refused_and_not_repeated(odd: str) -> None:
    args = OpenAIArgs(base_url="http://h", model="judge-1", api_key_env="JUDGE_KEY")
    with pytest.raises(InvalidJobError, match="the key in JUDGE_KEY") as error:
        ExternalPolicy("judge", args, f"s3cret{odd}s3cret")
    assert "s3cret" not in str(error.value)


async def test_a_turn_is_a_chat_completion(api: Api) -> None:
    async with api.policy() as judge:
        answer = await judge.generate(CALL)
    ((path, headers, body),) = api.requests
    assert path == "/v1/chat/completions"
    assert headers["authorization"] == "Bearer key"
    assert body == {
        "model": "judge-1",
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}],
        "max_tokens": 16,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 5,
    }
    assert (answer.text, answer.finish_reason, answer.sampled_tokens) == ("yes", "stop", 1)
    assert answer.prompt_tokens == 9
    assert len(answer.token_ids) == 0


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_what_may_pass_is_tried_again(api: Api, status: int) -> None:
    api.answers = [(status, "busy", {"retry-after": "0.01"}), (200, ANSWER, {})]
    async with api.policy() as judge:
        assert (await judge.generate(CALL)).text == "yes"
    assert len(api.requests) == 2


async def test_a_server_that_stays_broken_is_unavailable_with_its_words(api: Api) -> None:
    api.answers = [(500, {"error": {"message": "out of memory"}}, {})]
    async with api.policy() as judge:
        with pytest.raises(UnavailableError, match=r"'judge'.*3 times.*500: out of memory"):
            await judge.generate(CALL)
    assert len(api.requests) == 3


@pytest.mark.parametrize(
    ("status", "said", "words"),
    [
        (401, {"error": {"message": "bad key"}}, "answered 401: bad key"),
        (404, "no such page", "answered 404: no such page"),
        (301, "moved", "answered 301: moved"),
    ],
)
async def test_an_api_that_never_answered_and_knows_neither_key_nor_address_is_the_job_s_fault(
    api: Api, status: int, said: Any, words: str
) -> None:
    api.answers = [(status, said, {})]
    async with api.policy() as judge:
        with pytest.raises(InvalidJobError, match=words):
            await judge.generate(CALL)
    assert len(api.requests) == 2


@pytest.mark.parametrize("status", [401, 403, 404, 302])
async def test_one_that_answers_something_else_refuses_the_prompt(api: Api, status: int) -> None:
    """As gateways do whose rules a text happens to break."""
    api.answers = [(status, "blocked", {}), (200, ANSWER, {})]
    async with api.policy() as judge:
        with pytest.raises(InvalidRequestError, match=f"{status}: blocked") as refused:
            await judge.generate(CALL)
    assert not isinstance(refused.value, InvalidJobError)
    assert api.requests[1][2]["messages"] == [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize("status", [401, 403, 404, 302])
async def test_one_that_has_answered_is_away_when_it_says_so(api: Api, status: int) -> None:
    gone: tuple[int, str, dict[str, str]] = (status, "gone", {})
    api.answers = [(200, ANSWER, {}), gone, gone, (200, ANSWER, {}), gone]
    async with api.policy() as judge:
        await judge.generate(CALL)
        await judge.generate(CALL)
        with pytest.raises(UnavailableError, match=f"3 times; at last {status}: gone"):
            await judge.generate(CALL)


@pytest.mark.parametrize("status", [400, 413, 418, 422])
async def test_a_prompt_that_is_refused_is_the_program_s(api: Api, status: int) -> None:
    api.answers = [(status, {"error": {"message": "content_filter"}}, {})]
    async with api.policy() as judge:
        with pytest.raises(InvalidRequestError, match=f"{status}: content_filter") as refused:
            await judge.generate(CALL)
    assert not isinstance(refused.value, InvalidJobError)
    assert len(api.requests) == 1


NO_COMPLETIONS = [
    "<html>",
    "",
    b"\xff\xfe",
    [],
    {"choices": []},
    {"choices": [{"message": {"content": 5}}]},
    {**ANSWER, "usage": {"prompt_tokens": -1}},
]


@pytest.mark.parametrize("said", NO_COMPLETIONS)
async def test_an_answer_that_is_no_completion_is_asked_for_again(api: Api, said: Any) -> None:
    api.answers = [(200, said, {}), (200, ANSWER, {})]
    async with api.policy() as judge:
        assert (await judge.generate(CALL)).text == "yes"
        api.answers = [(200, said, {})]
        before = counted("flexmarl_rollout_bad_answers_total")
        with pytest.raises(BadAnswerError, match="3 times; at last no chat completion"):
            await judge.generate(CALL)
    assert counted("flexmarl_rollout_bad_answers_total") - before == 1
    assert len(api.requests) == 5


async def test_what_cannot_be_unpacked_is_asked_for_again(api: Api) -> None:
    api.answers = [(200, "no gzip", {"content-encoding": "gzip"}), (200, ANSWER, {})]
    async with api.policy() as judge:
        assert (await judge.generate(CALL)).text == "yes"


async def test_tokens_need_not_be_counted(api: Api) -> None:
    api.answers = [(200, {**ANSWER, "usage": {"completion_tokens": None}}, {})]
    async with api.policy() as judge:
        assert (await judge.generate(CALL)).sampled_tokens == 0


async def test_a_server_that_hangs_or_is_not_there_is_unavailable(api: Api) -> None:
    api.hangs.clear()
    async with api.policy(timeout=0.05) as judge:
        with pytest.raises(UnavailableError, match="ReadTimeout"):
            await judge.generate(CALL)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    async with api.policy(base_url=f"http://127.0.0.1:{port}") as judge:
        with pytest.raises(UnavailableError, match="ConnectError"):
            await judge.generate(CALL)


async def test_calls_run_side_by_side(api: Api) -> None:
    api.hangs.clear()
    async with api.policy() as judge, asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(judge.generate(CALL))
        async with asyncio.timeout(60):
            while len(api.requests) < 8:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        api.hangs.set()


JUDGED = """
    policies:
      - name: solver
        model: {uri: "random://llama?hidden=64&layers=2&heads=4"}
      - name: judge
        engine: {kind: openai, openai: {baseUrl: "URL", model: judge-1}}
        training: {algorithm: none}
    agents:
      - {name: solver, policy: solver}
      - {name: verifier, policy: judge}
    workflow: {name: solver-verifier}
"""


def judged(api: Api) -> str:
    return JUDGED.replace("URL", api.url)


async def test_an_untrained_judge_plays_with_a_trained_agent(api: Api, stage: Any) -> None:
    async with stage(judged(api)) as played:
        played.engines["solver"].say = lambda prompt: "2"
        finished = await played.run()
        assert {episode.outcome for episode in finished.episodes} == {"ok"}
        assert finished.episodes[0].agents["verifier"].sampled_tokens == 1
        assert finished.episodes[0].agents["verifier"].reward == 1.0
        assert list(played.samples) == ["solver"]
        assert len(played.samples["solver"].sequences) == 4


async def test_a_judge_that_refuses_its_key_fails_the_group_clearly(api: Api, stage: Any) -> None:
    api.answers = [(401, {"error": {"message": "bad key"}}, {})]
    async with stage(judged(api)) as played:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await played.run()
    assert failed.value.code() is grpc.StatusCode.INTERNAL
    assert "401: bad key" in str(failed.value.details())


async def test_a_judge_that_refuses_one_prompt_costs_one_episode(api: Api, stage: Any) -> None:
    async with stage(judged(api)) as played:
        api.answers = [(400, {"error": {"message": "context_length_exceeded"}}, {})]
        api.answers += [(200, ANSWER, {})]
        finished = await played.run()
    ok, broken = "ok", "workflow-error"
    assert sorted(each.outcome for each in finished.episodes) == [ok] * 3 + [broken]
    assert len(played.samples["solver"].sequences) == 3


async def test_a_judge_that_answers_badly_each_time_is_the_group_s_trouble(
    api: Api, stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flexmarl.rollout.external.LONGEST_WAIT_SECONDS", 0.0)
    api.answers = [(200, "<html>", {})]
    async with stage(judged(api)) as played:
        with pytest.raises(grpc.aio.AioRpcError, match="no chat completion: <html>") as failed:
            await played.run()
    assert failed.value.code() is BadAnswerError.code
