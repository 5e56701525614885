"""How a reward fails."""

from flexmarl.runtime.errors import FlexMARLError


class RewardError(FlexMARLError):
    """No reward can be given to this episode; it is excluded and counted, never worth 0."""


class RewardTimeoutError(RewardError):
    """The reward took longer than it may."""
