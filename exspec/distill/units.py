"""Units of labelled text on disk: written whole or not at all, read back as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from exspec.core.errors import InvalidRequestError
from exspec.distill.disk import write_or_tell
from exspec.distill.labels import Labels
from exspec.distill.texts import Conversation


@dataclass(frozen=True, slots=True)
class Unit:
    """C conversations laid end to end, N tokens, A of them with labels (see `Labels`).

    `tokens` int32 `[N]`, `lengths`, `text_starts` and `answer_starts` int32 `[C]`, `is_greedy` bool
    `[C]`, `label_ids` int32 `[A, k]`, `label_logprobs` float16 `[A, k]`.
    """

    tokens: torch.Tensor
    lengths: torch.Tensor
    text_starts: torch.Tensor
    answer_starts: torch.Tensor
    is_greedy: torch.Tensor
    label_ids: torch.Tensor
    label_logprobs: torch.Tensor

    @property
    def num_answer_tokens(self) -> int:
        """Those the target generated as answers."""
        return int((self.lengths - self.answer_starts).sum())


def make_unit(conversations: Sequence[Conversation], labels: Labels) -> Unit:
    """Put both together."""
    return Unit(
        torch.tensor([t for one in conversations for t in one.tokens], dtype=torch.int32),
        torch.tensor([len(one.tokens) for one in conversations], dtype=torch.int32),
        torch.tensor([one.text_start for one in conversations], dtype=torch.int32),
        torch.tensor([one.answer_start for one in conversations], dtype=torch.int32),
        torch.tensor([one.is_greedy for one in conversations], dtype=torch.bool),
        labels.token_ids,
        labels.logprobs,
    )


class UnitStore:
    """Owns the folder of a distillation's units."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, number: int) -> bool:
        """Whether the unit is there."""
        return self._path(number).is_file()

    def write(self, number: int, unit: Unit) -> None:
        """Write a unit; on failure nothing of it is left.

        Raises:
            CapacityError: the disk is full.
            InvalidRequestError: the folder cannot be written to.
        """
        fields = {name: getattr(unit, name) for name in Unit.__slots__}
        path = self._path(number)
        write_or_tell(path, save(fields), path.name)

    def read(self, number: int) -> Unit:
        """A unit that is there.

        Raises:
            InvalidRequestError: the file was cut or changed; its path is named.
        """
        path = self._path(number)
        try:
            return Unit(**load_file(path))
        except (OSError, SafetensorError, TypeError) as error:
            raise InvalidRequestError(
                f"{path} cannot be read ({error}); delete it, and it is made again", field="out"
            ) from error

    def _path(self, number: int) -> Path:
        return self._folder / f"unit-{number:05d}.safetensors"
