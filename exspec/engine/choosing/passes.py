"""The choices of a whole pass: rows with rules, rows without, and tokens that are scored.

Between the head and the host. Marks of rows that stop early travel with the choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from exspec.core.choosing import TokenLogprobs
from exspec.engine.choosing.choose import choose, over_vocabulary
from exspec.engine.choosing.choosing import Asked
from exspec.engine.choosing.logprobs import logprobs_at
from exspec.engine.heads import Head
from exspec.engine.rows import NOT_FINITE, RowInput


@dataclass(frozen=True, slots=True)
class PassLogits:
    """The head's own logits `[M, n]` of a pass, with the rows that asked for them.

    Places of choices come first, then those of scored tokens, both in the order of the rows.
    """

    head: Head
    vocab_size: int
    logits: torch.Tensor
    rows: Sequence[RowInput]

    def choices(self) -> torch.Tensor:
        """Token ids or marks `[M]`; for a scored token 0, or the mark of what is not finite."""
        num_choices = sum(row.num_choices for row in self.rows)
        chosen = self._choices_of_rows(self.logits[:num_choices])
        if num_choices == len(self.logits):
            return chosen
        scored = self.logits[num_choices:].amax(dim=-1).isfinite()
        return torch.cat((chosen, torch.where(scored, 0, NOT_FINITE)))

    def _choices_of_rows(self, logits: torch.Tensor) -> torch.Tensor:
        """Greedy at once if no row has rules."""
        asked = [_asked(row) for row in self.rows if row.choosing is not None and row.num_choices]
        if not asked:
            return self.head.best(logits)
        with_rules, without = list[int](), list[int]()
        for row, begin in zip(self.rows, self._starts(), strict=True):
            places = without if row.choosing is None else with_rules
            places += range(begin, begin + row.num_choices)
        if not without:
            return choose(logits, asked, self.head.token_ids)
        chosen = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
        chosen[without] = self.head.best(logits[without])
        chosen[with_rules] = choose(logits[with_rules], asked, self.head.token_ids)
        return chosen

    def _starts(self) -> list[int]:
        """Where each row's choices begin."""
        return list(accumulate((row.num_choices for row in self.rows), initial=0))[:-1]

    def logprobs(self, choices: Sequence[Sequence[int]]) -> tuple[tuple[TokenLogprobs, ...], ...]:
        """Of each row's `choices` (as many as it got), if its rules want any."""
        places, tokens, num_top = list[int](), list[int](), list[int]()
        counts = [0] * len(self.rows)
        for index, (row, begin) in enumerate(zip(self.rows, self._starts(), strict=True)):
            number = None if row.choosing is None else row.choosing.rules.num_logprobs
            if number is not None:
                counts[index] = len(choices[index])
                places += range(begin, begin + counts[index])
                tokens += choices[index]
                num_top += [number] * counts[index]
        return self._report(places, tokens, num_top, counts)

    def chances(self) -> Sequence[tuple[float, ...]]:
        """How likely each row's last greedy choice and its rivals are, where the row wants it."""
        asked = [
            (index, begin + row.num_choices - 1)
            for index, (row, begin) in enumerate(zip(self.rows, self._starts(), strict=True))
            if row.wants_chance and row.num_choices
        ]
        if not asked:
            return ((),) * len(self.rows)
        logits = self.logits[[place for _, place in asked]].to(torch.float32)
        columns, is_known = self._columns([self.rows[index].rivals for index, _ in asked])
        rivals = logits.gather(-1, columns).masked_fill(~is_known, -torch.inf)
        likeliest = logits.amax(dim=-1, keepdim=True)
        normaliser = logits.logsumexp(dim=-1, keepdim=True)
        found = (torch.cat((likeliest, rivals), dim=-1) - normaliser).exp().tolist()
        chances: list[tuple[float, ...]] = [()] * len(self.rows)
        for (index, _), of_row in zip(asked, found, strict=True):
            chances[index] = tuple(of_row[: 1 + len(self.rows[index].rivals)])
        return chances

    def _columns(self, tokens: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Where the logits of tokens are, lists filled up to one length, and which have any."""
        width = max(map(len, tokens))
        filled = [[*some, *[0] * (width - len(some))] for some in tokens]
        ids = torch.tensor(filled, dtype=torch.int64, device=self.logits.device)
        ids = ids.reshape(len(tokens), width)
        last = self.logits.shape[-1] - 1
        own = self.head.token_ids
        if own is None:
            return ids.clamp(max=last), ids <= last
        columns = torch.searchsorted(own, ids).clamp(max=last)
        return columns, own[columns] == ids

    def scored(self, is_left_out: Sequence[bool]) -> tuple[tuple[TokenLogprobs, ...], ...]:
        """Of each row's scored tokens."""
        begin = sum(row.num_choices for row in self.rows)
        places, tokens, num_top = list[int](), list[int](), list[int]()
        counts = [0] * len(self.rows)
        for index, row in enumerate(self.rows):
            if not is_left_out[index]:
                number = None if row.choosing is None else row.choosing.rules.num_prompt_logprobs
                counts[index] = len(row.scored)
                places += range(begin, begin + len(row.scored))
                tokens += row.scored
                num_top += [number or 0] * len(row.scored)
            begin += len(row.scored)
        return self._report(places, tokens, num_top, counts)

    def _report(
        self,
        places: Sequence[int],
        tokens: Sequence[int],
        num_top: Sequence[int],
        counts: Sequence[int],
    ) -> tuple[tuple[TokenLogprobs, ...], ...]:
        """Cut into rows of `counts` items."""
        if not places:
            return ((),) * len(counts)
        logits = over_vocabulary(self.logits[list(places)], self.head.token_ids, self.vocab_size)
        items = iter(logprobs_at(logits, tokens, num_top))
        return tuple(tuple(next(items) for _ in range(count)) for count in counts)


def _asked(row: RowInput) -> Asked:
    """The choices a row with rules wants."""
    assert row.choosing is not None
    num_before = row.num_certain
    before = row.tokens[:num_before]
    needs_history = row.choosing.rules.needs_history
    return Asked(
        row.choosing,
        row.start + num_before,
        (*row.history, *before) if needs_history else before,
        row.tokens[num_before:],
    )
