"""What a user finds after a run."""

from __future__ import annotations

import json

import pytest

from .running import Job
from .specs import STEPS

pytestmark = pytest.mark.e2e


def test_the_summary_is_as_promised(reference: Job) -> None:
    summary = reference.summary()
    assert set(summary) == {"job", "steps", "seconds", "store_share", "tokens", "policies"}
    assert (summary["job"], summary["steps"]) == ("team", STEPS)
    assert summary["seconds"] > 0
    assert 0 < summary["store_share"] < 1
    lines = reference.lines()
    spent = sum(line["tokens"]["prompt"] + line["tokens"]["sampled"] for line in lines)
    assert summary["tokens"] == spent
    assert set(summary["policies"]) == {"solver", "verifier"}
    for name, policy in summary["policies"].items():
        first, last = (line["agents"][name]["reward"] for line in (lines[0], lines[-1]))
        assert policy == {
            "version": STEPS,
            "eval_before": reference.lines("evals.jsonl")[0]["agents"][name]["accuracy"],
            "eval_after": reference.lines("evals.jsonl")[-1]["agents"][name]["accuracy"],
            "reward_first": first,
            "reward_last": last,
        }


def test_the_report_shows_the_first_and_the_last_episodes(reference: Job) -> None:
    page = (reference.run_dir / "report.html").read_text()
    episodes = reference.lines("episodes.jsonl")
    for episode in (*episodes[:5], *episodes[-5:]):
        for turn in episode["turns"]:
            assert turn["text"] in page
    assert "<svg" in page
    for outside in ("http-equiv", "<script src", "<link", "@import"):
        assert outside not in page


def test_status_and_episodes_read_a_finished_run(reference: Job) -> None:
    run = str(reference.run_dir)
    status = json.loads(reference.call("status", run, "--json").stdout)
    assert status["phase"] == "Complete"
    assert status["summary"] == reference.summary()
    assert status["last_step"] == reference.lines()[-1]
    told = reference.call("episodes", run, "--step", str(STEPS))
    assert told.returncode == 0
    last = reference.lines("episodes.jsonl")[-1]
    assert all(turn["text"] in told.stdout for turn in last["turns"])
    assert told.stdout.count(f"step {STEPS}  ") == 5


def test_a_finished_run_is_neither_resumed_nor_overwritten(reference: Job) -> None:
    before = reference.checksums()
    options = ("run", str(reference.file), "--run-dir", str(reference.run_dir))
    assert "there is nothing to resume" in reference.call(*options, "--resume").stdout
    refused = reference.call(*options)
    assert refused.returncode == 2
    assert "holds a finished run" in refused.stderr
    assert reference.checksums() == before


def test_an_exported_model_loads(reference: Job) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out = reference.directory / "exported"
    done = reference.call("export", str(reference.run_dir), "solver", str(out))
    assert done.returncode == 0, done.stderr
    model = AutoModelForCausalLM.from_pretrained(out)
    tokenizer = AutoTokenizer.from_pretrained(out)
    chat = [{"role": "user", "content": "q1"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    logits = model(tokenizer(prompt, return_tensors="pt").input_ids).logits
    assert logits.shape[-1] == model.config.vocab_size
    assert logits.isfinite().all()
