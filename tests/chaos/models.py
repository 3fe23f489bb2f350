"""The tiny pair of the chaos tests, and what plain decoding makes of a prompt: the truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from exspec.engine.loading import ModelSettings, load_model
from exspec.engine.reference import generate_plain
from tests.engine.tiny import save_tiny_model

STOP_IDS = (0, 1)
MAX_LENGTH = 200


@dataclass(frozen=True, slots=True)
class Pair:
    """Folders of a target and of a draft that agrees with it by chance only."""

    target: Path
    draft: Path


def save_pair(folder: Path) -> Pair:
    """Write both; their weights come from fixed seeds."""
    return Pair(
        save_tiny_model(folder / "target", seed=1),
        save_tiny_model(folder / "noise", seed=2, vocab_size=320),
    )


class Truth:
    """Plain decoding of the pair's target in float64, one sequence at a time; remembers answers."""

    def __init__(self, pair: Pair) -> None:
        self._loaded = load_model(ModelSettings(str(pair.target), dtype="float64"))
        self._known: dict[tuple[int, ...], tuple[int, ...]] = {}

    def tokens(self, prompt: Sequence[int], max_tokens: int) -> tuple[int, ...]:
        """What follows a prompt, stop tokens ignored."""
        key = tuple(prompt)
        known = self._known.get(key, ())
        if len(known) < max_tokens:
            known = self._known[key] = generate_plain(self._loaded, key, max_tokens, ())
        return known[:max_tokens]

    def until_stop(self, prompt: Sequence[int], max_tokens: int) -> tuple[int, ...]:
        """The same up to the model's own first stop token, that included."""
        tokens = self.tokens(prompt, max_tokens)
        ends = [tokens.index(stop) + 1 for stop in STOP_IDS if stop in tokens]
        return tokens[: min(ends, default=len(tokens))]
