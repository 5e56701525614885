"""Names of a job's keys in the store.

All of them start with the job's uid in braces: one hash slot of a cluster, so that one script may
touch several, and no meeting with a job of the same name that was deleted and created again.
"""

from dataclasses import dataclass, field

from flexmarl.runtime.errors import InvalidJobError


def job_tag(namespace: str, name: str, uid: str) -> str:
    """What the keys of a job have in common."""
    return f"{namespace}/{name}/{uid}"


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of the job `tag`; InvalidJobError when it has braces, which would move the hash tag."""

    tag: str
    prefix: str = field(init=False)

    def __post_init__(self) -> None:
        if not self.tag or set(self.tag) & set("{}"):
            raise InvalidJobError(f"job uid {self.tag!r} is empty or has braces")
        object.__setattr__(self, "prefix", f"{{{self.tag}}}:")

    @property
    def incarnation(self) -> str:
        """Counter: the latest incarnation."""
        return f"{self.prefix}incarnation"

    @property
    def state(self) -> str:
        """Hash: the orchestrator's own state."""
        return f"{self.prefix}state"

    @property
    def closed(self) -> str:
        """Integer: the highest closed step."""
        return f"{self.prefix}closed"

    @property
    def steps(self) -> str:
        """Set: steps that are not closed and have identities."""
        return f"{self.prefix}steps"

    @property
    def arrivals(self) -> str:
        """Channel: something new for whoever waits."""
        return f"{self.prefix}arrivals"

    def epoch(self, policy: str) -> str:
        """Counter: the latest epoch of a policy."""
        return f"{self.prefix}epoch:{policy}"

    def stream(self, policy: str) -> str:
        """Stream: the policy's groups of all steps."""
        return f"{self.prefix}stream:{policy}"

    def data(self, policy: str, stream_id: str) -> str:
        """Bytes: what the policy learns from the group of this entry of its stream."""
        return f"{self.stream(policy)}:{stream_id}"

    def staged(self, policy: str, attempt: str) -> str:
        """Bytes: data on its way into the store; it vanishes unless its entry follows."""
        return f"{self.prefix}staged:{attempt}:{policy}"

    def dead(self, policy: str) -> str:
        """Stream: the policy's groups that could not be read."""
        return f"{self.prefix}dead:{policy}"

    def entries(self, policy: str, step: int) -> str:
        """Sorted set, by name: which entries of the policy's stream belong to the step."""
        return f"{self.prefix}entries:{policy}:{step}"

    def kept(self, policy: str) -> str:
        """Set: steps that are committed and whose entries stay for replay."""
        return f"{self.prefix}kept:{policy}"

    def notes(self, step: int) -> str:
        """Hash: index -> the note that came with the group."""
        return f"{self.prefix}notes:{step}"

    def stored(self, step: int) -> str:
        """Hash: index -> policies whose entry was lost, separated by spaces; mostly empty."""
        return f"{self.prefix}stored:{step}"
