"""Writes train.jsonl and heldout.jsonl: every ordered triple of digits once, 200 of them held out.

Each task also carries a fixed proposal for the verifier to judge; in each file half of them are
right, so that a constant verdict scores 0.5. Run it again and the files come out the same.
"""

import itertools
import json
import random
from pathlib import Path

HELD_OUT = 200
HERE = Path(__file__).parent


def tasks() -> list[dict[str, str]]:
    rng = random.Random(0)
    triples = list(itertools.product("0123456789", repeat=3))
    rng.shuffle(triples)
    out = []
    for number, triple in enumerate(triples):
        answer = max(triple)
        wrong = [digit for digit in dict.fromkeys(triple) if digit != answer]
        others = [digit for digit in "0123456789" if digit != answer]
        near = bool(wrong) and rng.random() < 0.7  # most wrong proposals stand in the question
        proposal = answer if number % 2 == 0 else rng.choice(wrong if near else others)
        out.append(
            {
                "question": f"max {''.join(triple)}",
                "answer": answer,
                "proposal": proposal,
                "verdict": "yes" if proposal == answer else "no",
            }
        )
    return out


if __name__ == "__main__":
    everything = tasks()
    for name, rows in (
        ("heldout.jsonl", everything[:HELD_OUT]),
        ("train.jsonl", everything[HELD_OUT:]),
    ):
        (HERE / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
