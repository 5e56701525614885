"""Groups that fail by their own fault: tried again, then given up, and the job goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.contract.experience.conftest import Server
from tests.contract.orchestrator.conftest import team
from tests.contract.orchestrator.test_failures import once_at
from tests.unit.orchestrator.jobs import make_job

from flexmarl.rollout.partial import BadAnswerError
from flexmarl.runtime.errors import CorruptError, FlexMARLError

ERRORS = pytest.mark.parametrize("error", [BadAnswerError, CorruptError, FlexMARLError])
"""The second and the third: what a worker's own clients make of an answer that they do not know."""


@ERRORS
async def test_one_bad_answer_costs_one_try(
    tmp_path: Path, store_server: Server, error: type[FlexMARLError]
) -> None:
    async with team(make_job(), tmp_path, store_server) as around:

        def answer_wrongly() -> None:
            raise error("engine e: 'p0': log-probs that are not finite")

        around.workers[0].plays = once_at(1, 2, answer_wrongly)
        await around.run()
        around.assert_trained_as_if_nothing_had_happened()
        counts = [line["counts"] for line in around.lines("metrics")]
        assert counts[1]["groups-reissued"] == 1
        assert not any("groups-given-up" in each for each in counts)


@ERRORS
async def test_a_group_that_is_always_answered_wrongly_is_given_up_alone(
    tmp_path: Path, store_server: Server, error: type[FlexMARLError]
) -> None:
    async with team(make_job(), tmp_path, store_server) as around:
        tries = 0

        def plays(request: Any) -> None:
            nonlocal tries
            if (request.id.step, request.id.index) == (1, 2):
                tries += 1
                raise error("engine e: 'p0': 3 ids, 4 log-probs")

        around.workers[0].plays = plays
        await around.run()
        assert tries == 3
        lines = around.lines("metrics")
        assert [line["counts"].get("groups-given-up", 0) for line in lines] == [0, 1, 0, 0]
        assert around.json("progress.json")["phase"] == "Complete"
