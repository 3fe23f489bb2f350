"""Requests with rules: what the toy target generates by them, and what workers were sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coordinator_world import World
from toy import continuation, target_language
from toy_choices import toy_choice

from exspec.core.choosing import ChoiceRules

PROMPT = (11, 0, 2)
LONG = tuple(5 + i % 80 for i in range(60))


def sampled(prompt: Sequence[int] = PROMPT, number: int = 20, **rules: Any) -> tuple[int, ...]:
    """What the toy target generates by these rules, token by token."""
    made = ChoiceRules(len(prompt), **rules)
    return continuation(prompt, number, lambda context: toy_choice(target_language, context, made))


def entries(made: World, worker: str):
    """All entries a worker was sent."""
    return [entry for name, batch in made.sent if name == worker for entry in batch.entries]
