"""Tiny plans that run in a second, and who looks on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from exspec.distill.plan import DistillPlan


def tiny_plan(target: Path, out: Path, **changes) -> DistillPlan:
    """A draft of one layer from some two hundred tokens."""
    small = {
        "num_layers": 1, "draft_vocab": 200, "num_tokens": 200, "num_epochs": 3.0,
        "num_labels": 4, "max_prompt_tokens": 240, "max_answer_tokens": 8,
    }  # fmt: skip
    return DistillPlan(**{"target": str(target), "out": out, **small, **changes})


def write_prompts(path: Path, number: int = 20) -> Path:
    """Prompts in a file: a tiny target that writes its own writes long ones."""
    path.write_text("".join(f"Say {index} again.\n" for index in range(number)))
    return path


class Onlooker:
    """Writes down what it is told, and asks for the end when `wants_end` says so."""

    def __init__(self, wants_end: Callable[[Onlooker], bool] = lambda _: False) -> None:
        self.stages: list[tuple[str, int, int]] = []
        self.notes: list[str] = []
        self.name = ""
        self.num_done = 0
        self.num_stage_done = 0
        self.num_asked = 0
        self._wants_end = wants_end

    def stage(self, name, total, done):
        self.stages.append((name, total, done))
        self.name, self.num_stage_done = name, 0

    def advance(self, number):
        self.num_done += number
        self.num_stage_done += number

    def note(self, line):
        self.notes.append(line)

    def should_stop(self):
        self.num_asked += 1
        return self._wants_end(self)
