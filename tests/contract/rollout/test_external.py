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

from flexmarl.contracts.policy import OpenAIArgs
from flexmarl.rollout.external import ExternalPolicy
from flexmarl.rollout.policies import SamplingChoice, TurnCall
from flexmarl.runtime.errors import InvalidJobError, UnavailableError

CALL = TurnCall((("system", "s"), ("user", "hi")), None, SamplingChoice(16, 0.5, 0.9, 0), 5)
ANSWER = {
    "choices": [{"message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
}


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
                data = said.encode() if isinstance(said, str) else json.dumps(said).encode()
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
        (200, "<html>", "did not answer with a chat completion: <html>"),
        (200, {"choices": []}, "did not answer with a chat completion"),
    ],
)
async def test_what_never_passes_says_what_to_mend(
    api: Api, status: int, said: Any, words: str
) -> None:
    api.answers = [(status, said, {})]
    async with api.policy() as judge:
        with pytest.raises(InvalidJobError, match=words):
            await judge.generate(CALL)
    assert len(api.requests) == 1


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


async def test_an_untrained_judge_plays_with_a_trained_agent(api: Api, stage: Any) -> None:
    spec = f"""
        policies:
          - name: solver
            model: {{uri: "random://llama?hidden=64&layers=2&heads=4"}}
          - name: judge
            engine: {{kind: openai, openai: {{baseUrl: "{api.url}", model: judge-1}}}}
            training: {{algorithm: none}}
        agents:
          - {{name: solver, policy: solver}}
          - {{name: verifier, policy: judge}}
        workflow: {{name: solver-verifier}}
    """
    async with stage(spec) as played:
        played.engines["solver"].say = lambda prompt: "2"
        finished = await played.run()
        assert {episode.outcome for episode in finished.episodes} == {"ok"}
        assert finished.episodes[0].agents["verifier"].sampled_tokens == 1
        assert finished.episodes[0].agents["verifier"].reward == 1.0
        assert list(played.samples) == ["solver"]
        assert len(played.samples["solver"].sequences) == 4


async def test_a_judge_that_refuses_its_key_fails_the_group_clearly(api: Api, stage: Any) -> None:
    api.answers = [(401, {"error": {"message": "bad key"}}, {})]
    spec = f"""
        policies:
          - name: solver
            model: {{uri: "random://llama?hidden=64&layers=2&heads=4"}}
          - name: judge
            engine: {{kind: openai, openai: {{baseUrl: "{api.url}", model: judge-1}}}}
            training: {{algorithm: none}}
        agents:
          - {{name: solver, policy: solver}}
          - {{name: verifier, policy: judge}}
        workflow: {{name: solver-verifier}}
    """
    async with stage(spec) as played:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await played.run()
    assert failed.value.code() is grpc.StatusCode.INTERNAL
    assert "401: bad key" in str(failed.value.details())
