"""Job documents that hold, to be broken by tests."""

from typing import Any

MODEL = {"uri": "random://llama?hidden=64&layers=2&heads=4"}


def good() -> dict[str, Any]:
    """A team of two policies and a frozen judge behind an API; every rule is content with it."""
    return {
        "apiVersion": "flexmarl.io/v1alpha1",
        "kind": "MARLJob",
        "metadata": {"name": "largest-digit"},
        "spec": {
            "steps": 40,
            "policies": [
                {
                    "name": "solver",
                    "model": {**MODEL},
                    "training": {
                        "lr": 0.001,
                        "warmStart": {
                            "data": {"uri": "file://warm.jsonl"},
                            "agent": "solver",
                            "steps": 100,
                        },
                    },
                },
                {"name": "verifier", "model": {**MODEL}},
                {
                    "name": "judge",
                    "engine": {
                        "kind": "openai",
                        "openai": {"baseUrl": "http://127.0.0.1:1/v1", "model": "judge"},
                    },
                    "training": {"algorithm": "none"},
                },
            ],
            "agents": [
                {"name": "solver", "policy": "solver", "sampling": {"maxTokens": 2}},
                {"name": "verifier", "policy": "verifier"},
                {"name": "judge", "policy": "judge", "sampling": {"temperature": 0}},
            ],
            "workflow": {"name": "solver-verifier"},
            "data": {"uri": "file://train.jsonl"},
            "eval": {"data": {"uri": "gym://chain_sum", "size": 100}, "everySteps": 10},
            "batch": {"tasksPerStep": 64, "groupSize": 8},
        },
    }
