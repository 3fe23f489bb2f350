"""What a draft model is to be made from and how: the values of one `exspec distill`, checked.

Standard library only, so that the command line can refuse a plan before it loads torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any

from exspec.core.errors import InvalidRequestError

DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")


class EmbeddingType(StrEnum):
    """How a .gguf draft stores its embedding (and a head of its own)."""

    TARGET = "target"
    Q8_0 = "q8_0"
    Q4_1 = "q4_1"
    F16 = "f16"


@dataclass(frozen=True, slots=True)
class DistillPlan:
    """One draft model to be made.

    `target`, `gguf_file`, `revision` name the target as `ModelSettings` does. `out` is the draft's
    directory; work in progress lies in `work_dir`. `hidden_size` None is the target's width, an
    empty `from_layers` is layers spread over the target's, the first and the last included.
    `draft_vocab` counts the tokens drafted over, 0 for all. `num_tokens` are answer tokens of
    training text, each trained on `num_epochs` times. `minutes` ends this run after about so long;
    the same plan goes on later. `device` and `dtype` are the target's while it writes text.
    `prompts` is a file (a prompt a line, or JSON lines `{"prompt": …}`) in place of prompts sampled
    from the target. `num_labels` of the target's likeliest tokens are kept per position; 1 means
    its choice alone. `embedding_type` matters for a .gguf draft only.
    `start_from` names a draft of the same width and tokenizer, and no more layers, that is trained
    further.

    Raises:
        InvalidRequestError: for a value out of bounds, with its field.
    """

    target: str
    out: Path
    num_layers: int = 3
    hidden_size: int | None = None
    from_layers: tuple[int, ...] = ()
    draft_vocab: int = 12_288
    num_tokens: int = 2_000_000
    num_epochs: float = 4.0
    minutes: float | None = None
    device: str = "auto"
    dtype: str = "auto"
    seed: int = 0
    prompts: Path | None = None
    num_labels: int = 16
    learning_rate: float = 6e-4
    max_prompt_tokens: int = 768
    max_answer_tokens: int = 160
    gguf_file: str | None = None
    revision: str | None = None
    embedding_type: EmbeddingType = EmbeddingType.TARGET
    start_from: str | None = None

    def __post_init__(self) -> None:
        _check(bool(self.target), "target", "no target model was named")
        for name, least, most in _INTEGERS:
            value = getattr(self, name)
            if value is not None:
                _check_number(name, value, least, most)
        for name, most in _POSITIVES:
            value = getattr(self, name)
            if value is not None:
                is_fine = math.isfinite(value) and 0 < value <= most
                _check(is_fine, name, f"{name} {value} is not above 0 and at most {most:g}")
        _check(
            self.dtype in DTYPES,
            "dtype",
            f"unknown dtype {self.dtype!r}, expected one of {', '.join(DTYPES)}",
        )
        self._check_layers()

    def _check_layers(self) -> None:
        """The layers to start from, as far as they can be judged without the target."""
        layers = self.from_layers
        if not layers:
            return
        _check(
            list(layers) == sorted(set(layers)) and layers[0] >= 0,
            "from_layers",
            f"from_layers {_listed(layers)} are not layers of the target in rising order",
        )
        _check(
            len(layers) == self.num_layers,
            "from_layers",
            f"from_layers names {len(layers)} layers ({_listed(layers)}) for a draft of "
            f"{self.num_layers}",
        )

    @property
    def work_dir(self) -> Path:
        """Where text, labels and checkpoints lie while the draft is made."""
        return self.out / "work"

    def as_dict(self) -> dict[str, Any]:
        """The plan as JSON knows it, field by field."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}


_INTEGERS: tuple[tuple[str, int, int], ...] = (
    ("num_layers", 1, 1024),
    ("hidden_size", 1, 1 << 20),
    ("draft_vocab", 0, 1 << 24),
    ("num_tokens", 1, 1 << 40),
    ("seed", 0, (1 << 63) - 1),
    ("num_labels", 1, 1024),
    ("max_prompt_tokens", 1, 1 << 24),
    ("max_answer_tokens", 1, 1 << 24),
)
"""Whole-number fields with their least and most."""

_POSITIVES: tuple[tuple[str, float], ...] = (
    ("num_epochs", 10_000.0),
    ("minutes", 1e9),
    ("learning_rate", 1.0),
)
"""Fields above 0, with their most."""


def _check_number(name: str, value: object, least: int, most: int) -> None:
    is_fine = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
    _check(is_fine, name, f"{name} {value!r} is not a whole number from {least} to {most}")


def _check(is_fine: bool, field: str, message: str) -> None:  # noqa: FBT001
    if not is_fine:
        raise InvalidRequestError(message, field=field)


def _listed(layers: tuple[int, ...]) -> str:
    return ",".join(map(str, layers))


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value
