"""Whole names of pods: with a dot at the end, nobody looks for them elsewhere.

`pod.service.namespace.svc` is completed by a pod's resolver, which goes on to the domains of its
node where the cluster knows no such name: as long as no pod is ready. Where those answer for
every name, a stranger would be told the job's token.
"""

from collections.abc import Sequence
from pathlib import Path

from flexmarl.runtime.settings import Settings

RESOLVER = Path("/etc/resolv.conf")


def domains(resolver: str) -> list[str]:
    """The domains in which the resolver of that configuration completes names."""
    lines = [line.split() for line in resolver.splitlines()]
    found = [words[1:] for words in lines if words and words[0] == "search"]
    return found[-1] if found else []


def whole(address: str, searched: Sequence[str]) -> str:
    """`host:port` with the cluster's domain, if the name is one of a cluster that is known."""
    host, colon, port = address.rpartition(":")
    domain = next((one.strip(".") for one in searched if one.startswith("svc.")), "")
    if not domain or not host.endswith(".svc"):
        return address
    return f"{host}{domain.removeprefix('svc')}.{colon}{port}"


def with_whole_names(settings: Settings, resolver: str) -> Settings:
    """`settings` of a process whose resolver is configured so."""
    found, searched = settings.discovery, domains(resolver)

    def each(named: dict[str, str]) -> dict[str, str]:
        return {name: whole(address, searched) for name, address in named.items()}

    return settings.model_copy(
        update={
            "experience": whole(settings.experience, searched),
            "trainers": [whole(one, searched) for one in settings.trainers],
            "slot_policies": {
                whole(one, searched): policies for one, policies in settings.slot_policies.items()
            },
            "discovery": found
            and found.model_copy(
                update={
                    "workers": whole(found.workers, searched),
                    "engines": each(found.engines),
                    "pools": each(found.pools),
                }
            ),
        }
    )
