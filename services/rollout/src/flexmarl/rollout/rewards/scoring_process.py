"""A process that scores answers one after another: `python -m ...scoring_process math|gym`.

What a model wrote may send a parser into a computation without end (9**9**9**9), inside C code and
out of reach of exceptions; here an alarm then ends the whole process, and its owner starts another.
Requests and answers are lines of JSON on stdin and stdout; the end of stdin ends it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flexmarl.data.reasoning import reasoning_gym

MEMORY_HEADROOM_BYTES = 2 << 30

Score = Callable[[Mapping[str, Any]], float]


def math_scorer() -> Score:
    """Scores {"text", "answer"}; ValueError when the right answer itself cannot be read."""
    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # warns of timeouts that are off
    known: dict[str, Any] = {}

    def score(request: Mapping[str, Any]) -> float:
        answer = request["answer"]
        gold = known.get(answer)
        if gold is None:
            # Without its own timeouts, which the alarm of this process replaces.
            gold = parse(f"${answer}$", parsing_timeout=None) or parse(answer, parsing_timeout=None)
            if not gold:
                raise ValueError(f"the task's answer {answer!r} is no expression")
            if len(known) >= 10_000:
                known.clear()
            known[answer] = gold
        said = parse(request["text"], parsing_timeout=None)
        return float(verify(gold, said, timeout_seconds=None))

    return score


def gym_scorer() -> Score:
    """Scores {"text", "generator", "entry"}; KeyError for an unknown generator."""
    get_score_answer_fn = reasoning_gym().get_score_answer_fn
    known: dict[str, Callable[[str, Any], float]] = {}

    def score(request: Mapping[str, Any]) -> float:
        generator = request["generator"]
        if generator not in known:
            known[generator] = get_score_answer_fn(generator)
        return float(known[generator](request["text"], request["entry"]))

    return score


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the owner, who closes stdin
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print goes to the log
    score = {"math": math_scorer, "gym": gym_scorer}[sys.argv[1]]()
    _limit_memory()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    answers.write('{"ready": true}\n')
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, request["timeout"])
        try:
            reply: dict[str, Any] = {"score": score(request)}
        except Exception as error:  # the border: it travels to the owner as text
            reply = {"error": f"{type(error).__name__}: {error}"}
        signal.setitimer(signal.ITIMER_REAL, 0)
        answers.write(json.dumps(reply) + "\n")


def _limit_memory() -> None:
    """An answer may not take the machine's memory: it then fails with MemoryError."""
    with contextlib.suppress(FileNotFoundError):  # /proc is Linux
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + MEMORY_HEADROOM_BYTES
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))


if __name__ == "__main__":
    main()
