"""An environment that these tests' jobs bring along."""

from flexmarl.rollout.api import Step, Task


class Letters:
    """Pays for every early letter and ends after `turns` actions."""

    def __init__(self, turns: int) -> None:
        self.left = turns

    def reset(self, task: Task, seed: int) -> str:
        return f"{task.record['question']}: say letters."

    def step(self, text: str) -> Step:
        self.left -= 1
        reward = sum("a" <= letter <= "m" for letter in text) / 10
        return Step(f"{self.left} left", reward, done=self.left == 0)
