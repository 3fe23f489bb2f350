"""One sequence's rules, ready for use: what is worked out once and kept with its KV."""

from __future__ import annotations

from exspec.core.choosing import ChoiceRules


class Choosing:
    """Made by `ModelRunner.open_choosing`, handed in with each of the sequence's rows."""

    def __init__(self, rules: ChoiceRules) -> None:
        self.rules = rules
