"""Rules about where the pods of a pool may run: what a pod with such fields would be refused for.

Like `contracts.rules`, of which these are a part.
"""

import re
from collections.abc import Iterator

from flexmarl.contracts.cluster import LABEL_KEY, LABEL_KEY_LENGTH
from flexmarl.contracts.places import Place
from flexmarl.contracts.problems import Problem, show


def tolerations_are_whole(spec: Place) -> Iterator[Problem]:
    for pool in spec["pools"].items():
        for one in pool["tolerations"].items():
            exists = one["operator"].text() == "Exists"
            if not one["key"].value and not exists:
                yield Problem(
                    one["key"].path,
                    "no key is given",
                    "name that of the taint, or tolerate every taint with operator: Exists",
                )
            if one["value"].value and exists:
                yield Problem(
                    one["value"].path, "would be ignored", "Exists asks for no value; remove it"
                )
            if one["tolerationSeconds"].given and one["effect"].text() != "NoExecute":
                yield Problem(
                    one["tolerationSeconds"].path,
                    "would be ignored",
                    "only with effect: NoExecute pods are told to leave; remove it",
                )


def selectors_name_labels(spec: Place) -> Iterator[Problem]:
    for pool in spec["pools"].items():
        for label in pool["nodeSelector"].fields():
            key = str(label.key)
            if not re.match(LABEL_KEY, key) or len(key) > LABEL_KEY_LENGTH:
                yield Problem(
                    pool["nodeSelector"].path,
                    f"{show(key)} is no key of a label",
                    "must be name or vendor.example/name",
                )


PLACEMENT_RULES = (tolerations_are_whole, selectors_name_labels)
