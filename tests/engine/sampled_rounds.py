"""Tens of thousands of sampled sequences at once: rounds of drafts and verification over logits
that are a table. The choices are the engine's own; models, KV and wire are not there.
"""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from exspec.core.acceptance import accept
from exspec.core.choosing import ChoiceRules
from exspec.engine.choosing.choose import choose
from exspec.engine.choosing.choosing import Asked, Choosing
from exspec.engine.reference_sampler import ReferenceSampler

Chooser = Callable[[torch.Tensor, Sequence[Asked]], torch.Tensor]
"""Logits `[M, vocab_size]` and who asks -> token ids `[M]`."""


@dataclass(frozen=True)
class Tables:
    """Logits `[vocab_size, vocab_size]` after each token, of a target and of a draft."""

    target: torch.Tensor
    draft: torch.Tensor
    is_draft_greedy: bool = False
    """Whether drafts are the draft's best tokens, or drawn with the noise of the target."""

    @property
    def vocab_size(self) -> int:
        return len(self.target)


def drawn_tables(vocab_size: int, seed: int) -> Tables:
    """A target, and a draft that is like it by half and draws with the target's noise."""
    generator = torch.Generator().manual_seed(seed)
    shape = (vocab_size, vocab_size)
    target = torch.randn(shape, generator=generator, dtype=torch.float64)
    return Tables(target, target / 2 + torch.randn(shape, generator=generator).double() / 2)


@dataclass
class Sampled:
    """Sequences, one per seed. `num_rounds`: by how many drafts, and how many were accepted."""

    logs: list[tuple[int, ...]]
    num_rounds: Counter[tuple[int, int]] = field(default_factory=Counter)

    def blocks(self, start: int, length: int, vocab_size: int) -> torch.Tensor:
        """How often each block of `length` tokens stands at `start`: `[vocab_size] * length`."""
        tokens = torch.tensor([log[start : start + length] for log in self.logs])
        places = vocab_size ** torch.arange(length - 1, -1, -1)
        counts = torch.bincount((tokens * places).sum(dim=1), minlength=vocab_size**length)
        return counts.reshape((vocab_size,) * length)


def sample(
    tables: Tables,
    rules: ChoiceRules,
    prompt: tuple[int, ...],
    seeds: Sequence[int],
    num_tokens: int,
    chooser: Chooser = choose,
) -> Sampled:
    """Rounds of as many drafts as can be used, until all sequences have `num_tokens` new tokens."""
    first = Choosing(rules, tables.vocab_size)
    choosings = [_with_seed(first, seed) for seed in seeds]
    sampled = Sampled([prompt] * len(seeds))
    end = len(prompt) + num_tokens
    going = list(range(len(seeds)))
    while going:
        logs = [sampled.logs[i] for i in going]
        own = [choosings[i] for i in going]
        drafts = _drafts(tables, own, logs, end)
        chosen = _choices(tables, own, logs, drafts, chooser)
        for i, log, drafted, choices in zip(going, logs, drafts, chosen, strict=True):
            decision = accept(drafted, choices)
            num = decision.num_accepted
            sampled.logs[i] = (*log, *drafted[:num], decision.bonus_token)
            sampled.num_rounds[len(drafted), num] += 1
        going = [i for i in going if len(sampled.logs[i]) < end]
    return sampled


def law_of_blocks(
    tables: Tables, rules: ChoiceRules, prompt: tuple[int, ...], length: int
) -> torch.Tensor:
    """The judge's probability of each block after the prompt, `[vocab_size] * length`."""
    judge = ReferenceSampler(rules)
    law = torch.zeros((tables.vocab_size,) * length, dtype=torch.float64)
    for block in itertools.product(range(tables.vocab_size), repeat=length - 1):
        probability = 1.0
        for place in range(length - 1):
            log = (*prompt, *block[:place])
            probability *= float(judge.log_law(tables.target[log[-1]], log)[block[place]].exp())
        if probability:
            log = (*prompt, *block)
            law[block] = probability * judge.log_law(tables.target[log[-1]], log).exp()
    return law


def _with_seed(choosing: Choosing, seed: int) -> Choosing:
    """Opening one takes long for so many."""
    other = copy.copy(choosing)
    other.rules = replace(choosing.rules, seed=seed)
    return other


def _drafts(
    tables: Tables, choosings: Sequence[Choosing], logs: Sequence[tuple[int, ...]], end: int
) -> list[tuple[int, ...]]:
    """Chosen one after the other, as `tables` say; the last token is the target's own."""
    best = tables.draft.argmax(dim=1).tolist()
    longer = list(logs)
    while going := [i for i, log in enumerate(longer) if len(log) < end - 1]:
        if tables.is_draft_greedy:
            chosen = [best[longer[i][-1]] for i in going]
        else:
            asked = [Asked(choosings[i], len(longer[i]), longer[i], ()) for i in going]
            chosen = choose(tables.draft[[longer[i][-1] for i in going]], asked).tolist()
        for i, token in zip(going, chosen, strict=True):
            longer[i] = (*longer[i], token)
    return [log[len(before) :] for log, before in zip(longer, logs, strict=True)]


def _choices(
    tables: Tables,
    choosings: Sequence[Choosing],
    logs: Sequence[tuple[int, ...]],
    drafts: Sequence[tuple[int, ...]],
    chooser: Chooser,
) -> list[tuple[int, ...]]:
    """The target's K + 1 choices of every sequence, all in one pass."""
    asked = [
        Asked(choosing, len(log), log, drafted)
        for choosing, log, drafted in zip(choosings, logs, drafts, strict=True)
    ]
    fed = [(log[-1], *drafted) for log, drafted in zip(logs, drafts, strict=True)]
    chosen = chooser(tables.target[list(itertools.chain(*fed))], asked).tolist()
    ends = itertools.accumulate((len(tokens) for tokens in fed), initial=0)
    return [tuple(chosen[begin:end]) for begin, end in itertools.pairwise(ends)]
