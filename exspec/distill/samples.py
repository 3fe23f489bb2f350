"""Labelled text as training samples: split into training and held-out, put into batches. Torch.

The order depends on the seed and the epoch alone, so a run that is resumed goes on where it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from exspec.distill.units import Unit

NUM_HELD_OUT = 128
"""Greedy conversations of the first unit that are never trained on."""
_POOL_BATCHES = 32
"""Conversations of about one length are found among this many batches' worth."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One conversation: `tokens` int32 `[n]`; labels `[n - text_start, k]`, from that token on."""

    tokens: torch.Tensor
    text_start: int
    answer_start: int
    label_ids: torch.Tensor
    label_logprobs: torch.Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples side by side: `ids` int64 `[B, width]`, filled up on the right.

    `wanted` bool `[B, width]` marks the places after which a labelled token stands; labels `[A, k]`
    of those places in row order; `in_answer` bool `[A]` says if the token is an answer's.
    """

    ids: torch.Tensor
    wanted: torch.Tensor
    label_ids: torch.Tensor
    label_logprobs: torch.Tensor
    in_answer: torch.Tensor


def split_samples(units: Sequence[Unit]) -> tuple[list[Sample], list[Sample]]:
    """Samples for training, and those held out: prompts that no sample for training has.

    Of very few prompts at most one in eight is held out, and of a single one none.
    """
    num_prompts = len({_prompt_of(sample) for sample, _ in _samples_of(units[0])})
    num_held_out = min(NUM_HELD_OUT, max(1, num_prompts // 8), num_prompts - 1)
    samples: list[Sample] = []
    held_out: dict[bytes, Sample] = {}
    for unit in units:
        for sample, is_greedy in _samples_of(unit):
            if is_greedy and len(held_out) < num_held_out:
                held_out.setdefault(_prompt_of(sample), sample)
            else:
                samples.append(sample)
    samples = [sample for sample in samples if _prompt_of(sample) not in held_out]
    return samples, list(held_out.values())


def _prompt_of(sample: Sample) -> bytes:
    """The same for the same prompt, and for no other."""
    return sample.tokens[: sample.answer_start].numpy().tobytes()


def _samples_of(unit: Unit) -> Iterator[tuple[Sample, bool]]:
    """The conversations of a unit, and whether their answers are greedy."""
    token = answer = 0
    starts = zip(unit.text_starts.tolist(), unit.answer_starts.tolist(), strict=True)
    rows = zip(unit.lengths.tolist(), starts, unit.is_greedy.tolist(), strict=True)
    for length, (text_start, answer_start), is_greedy in rows:
        size = length - text_start
        yield (
            Sample(
                unit.tokens[token : token + length],
                text_start,
                answer_start,
                unit.label_ids[answer : answer + size],
                unit.label_logprobs[answer : answer + size],
            ),
            is_greedy,
        )
        token += length
        answer += size


def epoch_batches(
    samples: Sequence[Sample], max_tokens: int, seed: int, epoch: int
) -> Iterator[list[int]]:
    """Indices of samples, each once; a batch holds `max_tokens` with its filling, or one sample."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % (1 << 64))
    order = torch.randperm(len(samples), generator=generator).tolist()
    pool: list[int] = []
    num_tokens = 0
    for index in order:
        pool.append(index)
        num_tokens += len(samples[index].tokens)
        if num_tokens >= _POOL_BATCHES * max_tokens:
            yield from _shuffled(_by_length(samples, pool, max_tokens), generator)
            pool, num_tokens = [], 0
    yield from _shuffled(_by_length(samples, pool, max_tokens), generator)


def _by_length(samples: Sequence[Sample], pool: Sequence[int], max_tokens: int) -> list[list[int]]:
    batches: list[list[int]] = [[]]
    for index in sorted(pool, key=lambda i: (len(samples[i].tokens), i)):
        if batches[-1] and (len(batches[-1]) + 1) * len(samples[index].tokens) > max_tokens:
            batches.append([])
        batches[-1].append(index)
    return [batch for batch in batches if batch]


def _shuffled(batches: list[list[int]], generator: torch.Generator) -> Iterator[list[int]]:
    for place in torch.randperm(len(batches), generator=generator).tolist():
        yield batches[place]


def collate(samples: Sequence[Sample]) -> Batch:
    """One batch of samples."""
    width = max(len(sample.tokens) for sample in samples)
    ids = torch.zeros((len(samples), width), dtype=torch.long)
    wanted = torch.zeros((len(samples), width), dtype=torch.bool)
    for row, sample in enumerate(samples):
        ids[row, : len(sample.tokens)] = sample.tokens
        wanted[row, sample.text_start - 1 : len(sample.tokens) - 1] = True
    return Batch(
        ids,
        wanted,
        torch.cat([sample.label_ids for sample in samples]),
        torch.cat([sample.label_logprobs for sample in samples]),
        torch.cat([_in_answer(sample) for sample in samples]),
    )


def _in_answer(sample: Sample) -> torch.Tensor:
    """For each label, if its token belongs to the answer."""
    return torch.arange(sample.text_start, len(sample.tokens)) >= sample.answer_start
