"""Small groups to store: what they hold is a function of their name."""

from __future__ import annotations

from typing import Any

import numpy as np

from flexmarl.contracts.v1 import experience_pb2 as pb
from flexmarl.experience.columns import Columns
from flexmarl.experience.samples import (
    GroupId,
    PolicySamples,
    Sequence,
    TurnSpan,
    VersionSpan,
    group_id_to_wire,
    group_to_wire,
    leased_from_wire,
    to_wire,
)
from flexmarl.experience.store import Store
from flexmarl.experience.wire import read_group
from flexmarl.runtime.errors import FlexMARLError

POLICIES = ("solver", "verifier")


def sequence(
    group: GroupId, episode: int, agent: str, tokens: int = 4, version: int | None = None
) -> Sequence:
    """Half prompt, half sampled; what it holds is a function of its name."""
    random = np.random.default_rng([group.step, group.index, episode, len(agent)])
    prompt = tokens // 2
    mask = np.zeros(tokens, np.uint8)
    mask[prompt:] = 1
    return Sequence(
        id=group.sequence_id(episode, agent, 0),
        agent=agent,
        episode=episode,
        token_ids=random.integers(0, 261, tokens, dtype=np.int32),
        loss_mask=mask,
        logprobs=-random.random(tokens, dtype=np.float32) * mask,
        turns=(
            TurnSpan(
                start=prompt,
                end=tokens,
                versions=(
                    VersionSpan(group.step if version is None else version, 0, tokens - prompt),
                ),
                finish_reason="stop",
                temperature=1.0,
            ),
        ),
        reward=float(episode % 2),
    )


def columns_of(samples: PolicySamples, group: GroupId) -> Columns:
    """As a trainer gets them."""
    return leased_from_wire(read_group(b"".join(group_to_wire(group, "t", [samples])))).columns


def samples_of(
    group: GroupId, episodes: int = 2, tokens: int = 4, silent: frozenset[str] = frozenset()
) -> list[PolicySamples]:
    """What both policies learn from a group; `silent` ones took no turn."""
    return [
        PolicySamples(
            policy,
            group.step,
            ()
            if policy in silent
            else tuple(sequence(group, episode, policy, tokens) for episode in range(episodes)),
        )
        for policy in POLICIES
    ]


def message(samples: PolicySamples, group: GroupId) -> pb.PolicySamples:
    return pb.PolicySamples.FromString(to_wire(samples, group))


def request(
    group: GroupId,
    episodes: int = 2,
    tokens: int = 4,
    silent: frozenset[str] = frozenset(),
    note: bytes = b"",
) -> pb.OfferedGroup:
    return pb.OfferedGroup(
        id=group_id_to_wire(group),
        task_id=f"task-{group.index}",
        policies=[
            message(samples, group) for samples in samples_of(group, episodes, tokens, silent)
        ],
        note=note,
    )


def sent(group: GroupId, **sizes: Any) -> bytes:
    """The group as it comes over the wire."""
    return request(group, **sizes).SerializeToString()


async def append(store: Store, group: bytes) -> bool:
    """Whether this one is stored now and was not before; why not is raised."""
    [outcome] = await store.append([group])
    if isinstance(outcome, FlexMARLError):
        raise outcome
    return outcome
