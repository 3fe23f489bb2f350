"""Trains a student on labelled text, step by step, and goes on where an earlier run stopped.

What comes out depends on the student, the samples and the settings alone: not on how often the
training was interrupted. On an accelerator, or with another number of threads, only nearly so.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from exspec.core.errors import InvalidRequestError
from exspec.distill.disk import write_or_tell
from exspec.distill.imitation import HeldOut, Imitator, measure
from exspec.distill.samples import Sample, collate, epoch_batches
from exspec.runtime.clock import Clock

_BATCH_TOKENS = 2048
_WARM_UP_SHARE = 0.02
_FINAL_RATE_SHARE = 0.05
_WEIGHT_DECAY = 0.01
_BETAS = (0.9, 0.95)
_MAX_NORM = 1.0
_CHECKPOINT_SECONDS = 240.0
_UNREADABLE = (
    AttributeError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
)
"""What reading a damaged checkpoint raises."""


@dataclass(frozen=True, slots=True)
class Course:
    """How long and how fast: `num_epochs` over the samples; the rate rises, then falls (cosine)."""

    num_epochs: float
    learning_rate: float
    seed: int

    def rate_at(self, progress: float) -> float:
        """Learning rate after a share of the training, 0 to 1."""
        if progress < _WARM_UP_SHARE:
            return self.learning_rate * max(progress / _WARM_UP_SHARE, 0.01)
        done = (progress - _WARM_UP_SHARE) / (1 - _WARM_UP_SHARE)
        share = _FINAL_RATE_SHARE + (1 - _FINAL_RATE_SHARE) * (1 + math.cos(math.pi * done)) / 2
        return self.learning_rate * share


@dataclass(slots=True)
class Progress:
    """How far a training is: whole epochs, batches of the one begun, samples and steps in all."""

    epoch: int = 0
    batch: int = 0
    num_samples: int = 0
    num_steps: int = 0


class Trainer:
    """Owns the student while it learns, the optimizer and the checkpoint file."""

    def __init__(
        self, imitator: Imitator, samples: Sequence[Sample], course: Course, checkpoint: Path
    ) -> None:
        """Goes on from the checkpoint if there is one.

        Raises:
            InvalidRequestError: the checkpoint is damaged, or of another student.
        """
        self.progress = Progress()
        self._imitator = imitator
        self._samples = samples
        self._course = course
        self._checkpoint = checkpoint
        self._learned = [
            (name, part) for name, part in imitator.student.named_parameters() if part.requires_grad
        ]
        is_matrix = [part.dim() >= 2 for _, part in self._learned]
        groups = [
            {
                "params": _picked(self._learned, is_matrix, wanted=True),
                "weight_decay": _WEIGHT_DECAY,
            },
            {"params": _picked(self._learned, is_matrix, wanted=False), "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(
            [group for group in groups if group["params"]], lr=course.learning_rate, betas=_BETAS
        )
        if checkpoint.is_file():
            self._resume()

    @property
    def num_total(self) -> int:
        """Samples the whole training sees, counted as often as they are seen."""
        return max(1, round(self._course.num_epochs * len(self._samples)))

    @property
    def is_done(self) -> bool:
        """Whether all of them were."""
        return self.progress.num_samples >= self.num_total

    def run(
        self, should_stop: Callable[[], bool], on_step: Callable[[int, float], None], clock: Clock
    ) -> bool:
        """Train to the end, or until told to stop: False then. Either way the state is kept.

        `on_step` hears after each step how many samples it had, and its loss.
        """
        saved = clock()
        while not self.is_done:
            batches = epoch_batches(
                self._samples, _BATCH_TOKENS, self._course.seed, self.progress.epoch
            )
            for place, batch in enumerate(batches):
                if place < self.progress.batch:
                    continue
                if self.is_done or should_stop():
                    self.save()
                    return self.is_done
                loss = self._step([self._samples[index] for index in batch])
                on_step(len(batch), loss)
                if clock() - saved > _CHECKPOINT_SECONDS:
                    self.save()
                    saved = clock()
            self.progress.epoch += 1
            self.progress.batch = 0
        self.save()
        return True

    def measure(self, held_out: Sequence[Sample]) -> HeldOut:
        """How the student does now."""
        return measure(self._imitator, held_out)

    def save(self) -> None:
        """Write the checkpoint.

        Raises:
            CapacityError: the disk is full.
        """
        progress = self.progress
        state = {
            "weights": {name: part.detach() for name, part in self._learned},
            "optimizer": self._optimizer.state_dict(),
            "progress": [progress.epoch, progress.batch, progress.num_samples, progress.num_steps],
        }
        content = io.BytesIO()
        torch.save(state, content)
        write_or_tell(self._checkpoint, content.getvalue(), self._checkpoint.name)

    def _step(self, samples: Sequence[Sample]) -> float:
        rate = self._course.rate_at(self.progress.num_samples / self.num_total)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        loss = self._imitator.loss(collate(samples))
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_([part for _, part in self._learned], _MAX_NORM)
        if not math.isfinite(float(loss.detach()) + float(norm)):
            raise InvalidRequestError(
                f"the training came to numbers that are not finite at step "
                f"{self.progress.num_steps + 1}; take a lower learning_rate than "
                f"{self._course.learning_rate:g}, or another target if its own are not",
                field="learning_rate",
            )
        self._optimizer.step()
        self.progress.batch += 1
        self.progress.num_samples += len(samples)
        self.progress.num_steps += 1
        return float(loss.detach())

    def _resume(self) -> None:
        try:
            state: dict[str, Any] = torch.load(self._checkpoint, weights_only=True)
            with torch.no_grad():
                for name, part in self._learned:
                    part.copy_(state["weights"][name])
            self._optimizer.load_state_dict(state["optimizer"])
            self.progress = Progress(*state["progress"])
        except _UNREADABLE as error:
            raise InvalidRequestError(
                f"{self._checkpoint} cannot be gone on from ({str(error)[:200]}); delete it, and "
                "the training begins anew",
                field="out",
            ) from error


def _picked(
    learned: Sequence[tuple[str, nn.Parameter]], marks: Sequence[bool], *, wanted: bool
) -> list[nn.Parameter]:
    return [part for (_, part), mark in zip(learned, marks, strict=True) if mark is wanted]
