"""Readable episodes, as lines of `episodes.jsonl`; pure."""

from __future__ import annotations

import json
from typing import Any

from flexmarl.contracts.v1 import rollout_pb2
from flexmarl.data.tasks import Task


def episode_lines(
    step: int, index: int, task: Task, group: rollout_pb2.GroupFinished
) -> list[dict[str, Any]]:
    """A line for each of the group's episodes that came with a transcript."""
    return [
        {
            "step": step,
            "index": index,
            "episode": number,
            "task_id": task.id,
            "task": task.record,
            "outcome": episode.outcome,
            "detail": episode.detail,
            "agents": {
                name: stats.reward if stats.HasField("reward") else None
                for name, stats in sorted(episode.agents.items())
            },
            "turns": json.loads(episode.transcript)["turns"],
        }
        for number, episode in enumerate(group.episodes)
        if episode.transcript
    ]
