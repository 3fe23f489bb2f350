"""How far a student is from the target at labelled places: logits, loss, what it gets right.

The student is any causal language model; only the head's rows of the draft vocabulary count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import linear
from transformers import PreTrainedModel

from exspec.distill.head_loss import frozen_head_loss
from exspec.distill.samples import Batch, Sample, collate

NUM_PROPOSED = 5
"""Draft tokens a round of the held-out measure proposes."""
_HARD_SHARE = 0.5
"""Of the loss is for the target's choice alone, the rest for its k likeliest tokens."""
_PROMPT_SHARE = 0.3
"""What a place in a prompt counts in comparison with one in an answer."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """How a draft does on text it was not trained on.

    `match_rate` is the share of positions where its first choice is the target's. `by_position[i]`
    is how often the first i + 1 tokens of a round are all accepted, over the rounds that proposing
    `NUM_PROPOSED` tokens from every round's end gives. `num_rounds` were counted.
    """

    num_positions: int
    match_rate: float
    num_rounds: int
    by_position: tuple[float, ...]

    @property
    def acceptance_length(self) -> float:
        """Tokens per round, the target's own one included."""
        return 1 + sum(self.by_position)


class Imitator:
    """A student seen through its draft vocabulary."""

    def __init__(self, student: PreTrainedModel, vocabulary: Sequence[int]) -> None:
        """`vocabulary` are rising token ids; all of them if it is empty."""
        self.student = student
        self._head: Any = student.get_output_embeddings()
        head = self._head
        vocab_size = int(head.weight.shape[0])
        ids = torch.tensor(list(vocabulary) or list(range(vocab_size)), device=head.weight.device)
        self._rows = None if len(ids) == vocab_size else ids
        self._dtype = torch.bfloat16 if is_bfloat16_fast(ids.device) else head.weight.dtype
        self._is_frozen = not head.weight.requires_grad
        self._weight = self._rows_of(head.weight)
        bias = getattr(head, "bias", None)
        self._bias = None if bias is None else self._rows_of(bias)
        self._places = torch.full((vocab_size,), -1, device=ids.device)
        self._places[ids] = torch.arange(len(ids), device=ids.device)

    def loss(self, batch: Batch) -> torch.Tensor:
        """Cross-entropy per place with the target's choice and with its likeliest tokens, halved.

        Tokens outside the draft vocabulary do not count; places with no other ones do not either.
        """
        places = self._places[batch.label_ids.long().to(self._places.device)]
        is_known = places >= 0
        soft = batch.label_logprobs.to(places.device).float().exp() * is_known
        soft = soft / soft.sum(dim=-1, keepdim=True).clamp_min(1e-9)
        weights = (1 - _HARD_SHARE) * soft
        weights[:, 0] += _HARD_SHARE * is_known[:, 0]
        weights[~batch.in_answer.to(places.device)] *= _PROMPT_SHARE
        tokens = places.clamp_min(0)
        total = weights.sum().clamp_min(1)
        if self._is_frozen:
            hidden = self._hidden(batch)
            return frozen_head_loss(hidden, self._weight, self._bias, tokens, weights) / total
        logits = self._logits(batch)
        normalisers = weights.sum(dim=-1) * logits.logsumexp(dim=-1)
        return (normalisers.sum() - (weights * logits.gather(-1, tokens)).sum()) / total

    def _logits(self, batch: Batch) -> torch.Tensor:
        """`[A, n]` over the draft vocabulary, float32, at the batch's wanted places."""
        if self._is_frozen:
            return linear(self._hidden(batch).to(self._dtype), self._weight, self._bias).float()
        weight = self._head.weight if self._rows is None else self._head.weight[self._rows]
        bias = getattr(self._head, "bias", None)
        bias = bias if bias is None or self._rows is None else bias[self._rows]
        with self._autocast():
            return linear(self._hidden(batch), weight, bias).float()

    def _hidden(self, batch: Batch) -> torch.Tensor:
        """What the head sees at the batch's wanted places, `[A, width]`."""
        device = self._places.device
        with self._autocast():
            output = self.student.base_model(input_ids=batch.ids.to(device), use_cache=False)
        return output.last_hidden_state[batch.wanted.to(device)]

    def _autocast(self) -> torch.autocast:
        is_half = self._dtype == torch.bfloat16
        return torch.autocast(self._places.device.type, torch.bfloat16, enabled=is_half)

    def _rows_of(self, table: torch.Tensor) -> torch.Tensor:
        """The draft vocabulary's part of the head, as it is now."""
        part = table.detach() if self._rows is None else table.detach()[self._rows]
        return part.to(self._dtype)

    @torch.no_grad()
    def matches(self, samples: Sequence[Sample]) -> list[list[bool]]:
        """For every token of every answer, if the student's first choice is the label's."""
        batch = collate(samples)
        best = self._logits(batch).argmax(dim=-1).cpu()
        labels = self._places[batch.label_ids[:, 0].long().to(self._places.device)].cpu()
        hits = (best == labels).tolist()
        found: list[list[bool]] = []
        for sample in samples:
            size = len(sample.label_ids)
            found.append(hits[sample.answer_start - sample.text_start : size])
            hits = hits[size:]
        return found


def measure(imitator: Imitator, held_out: Sequence[Sample]) -> HeldOut:
    """Rounds over the held-out answers as a coordinator would run them; a round starts after what

    the one before committed, so that text which is easy does not count more than it would there.
    """
    all_matches: list[list[bool]] = []
    for first in range(0, len(held_out), 16):
        all_matches += imitator.matches(held_out[first : first + 16])
    counts = [0] * NUM_PROPOSED
    num_rounds = 0
    for matches in all_matches:
        place = 1  # the first token comes with the prompt's own pass
        while place < len(matches):
            accepted = _leading(matches[place : place + NUM_PROPOSED])
            for i in range(accepted):
                counts[i] += 1
            num_rounds += 1
            place += accepted + 1
    num_positions = sum(len(matches) for matches in all_matches)
    return HeldOut(
        num_positions,
        sum(map(sum, all_matches)) / max(1, num_positions),
        num_rounds,
        tuple(count / max(1, num_rounds) for count in counts),
    )


def _leading(matches: Sequence[bool]) -> int:
    """How many hold before the first that does not."""
    return matches.index(False) if False in matches else len(matches)


def is_bfloat16_fast(device: torch.device) -> bool:
    """Whether products in bfloat16 are faster than in float32 here."""
    if device.type == "cpu":
        return bool(torch.cpu._is_avx512_bf16_supported())  # noqa: SLF001
    return device.type == "cuda" and torch.cuda.is_bf16_supported()
