"""Prompt look-up (Saxena 2023): what followed a sequence's last tokens when they occurred before.

An index of one sequence's runs of tokens, so that a look-up costs as much in a long log as in a
short one. What followed is put to the vote: every occurrence has a say, the more so the longer the
text before it is the same. Arithmetic on token ids; nothing else lives here.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

MOST_MATCHED = 16
"""Longer matches are taken to be this long."""
MOST_OCCURRENCES = 32
"""So many have a say: those of the longest runs first, and the latest of these."""
_POWER = 3
"""An occurrence's say is its match length to this power."""
_MOST_SAID = 8
"""Longer matches have no more say than those of this length."""


@dataclass(frozen=True, slots=True)
class Match:
    """What speaks for a looked-up token.

    So many tokens before it as `length` are the same; `share` of all votes were for it, above 0 and
    up to 1.
    """

    length: int
    share: float


@dataclass(frozen=True, slots=True)
class LookUp:
    """`tokens` may come next; `matches` speak for each, if all before it are right."""

    tokens: tuple[int, ...]
    matches: tuple[Match, ...]


class Occurrence(NamedTuple):
    """The last `match_length` tokens occurred before; `token` follows them at `end`."""

    token: int
    end: int
    match_length: int


def votes_for(occurrences: Sequence[Occurrence]) -> dict[int, int]:
    """How much say there is for every token that may come next; of equals the first found leads."""
    votes = dict[int, int]()
    for token, _, match_length in occurrences:
        votes[token] = votes.get(token, 0) + min(match_length, _MOST_SAID) ** _POWER
    return votes


def winner(occurrences: Sequence[Occurrence]) -> tuple[int, Match]:
    """The token most say is for, and what speaks for it. At least one occurrence is needed."""
    votes = votes_for(occurrences)
    token = max(votes, key=votes.__getitem__)
    length = max(one.match_length for one in occurrences if one.token == token)
    return token, Match(length, votes[token] / sum(votes.values()))


class NgramIndex:
    """Owns one sequence's tokens, and where each run of them ended."""

    def __init__(self, longest: int, shortest: int) -> None:
        """Runs of `longest` to `shortest` tokens are looked up, the longest first."""
        self._sizes = range(longest, min(shortest, longest) - 1, -1)
        self.clear()

    def clear(self) -> None:
        """Begin an empty sequence."""
        self.tokens: list[int] = []
        self._ends: dict[int, dict[tuple[int, ...], int]] = {size: {} for size in self._sizes}
        """Where a run ended last."""
        self._before = {size: array("q", [0]) for size in self._sizes}
        """For the run that ends at a place, where it ended before that; 0: nowhere."""

    def beyond(self, log: Sequence[int]) -> Sequence[int] | None:
        """What a log has beyond the sequence; None if it does not begin with it."""
        num_known = len(self.tokens)
        return log[num_known:] if list(log[:num_known]) == self.tokens else None

    def follow(self, log: Sequence[int]) -> None:
        """Go on to a longer log; another one, too, but that is not cheap."""
        if self.beyond(log) is None:
            self.clear()
        for token in log[len(self.tokens) :]:
            self.append(token)

    def append(self, token: int) -> None:
        """One token more."""
        self.tokens.append(token)
        end = len(self.tokens)
        for size, ends in self._ends.items():
            before = 0
            if end >= size:
                run = tuple(self.tokens[end - size :])
                before = ends.get(run, 0)
                ends[run] = end
            self._before[size].append(before)

    def look_up(self, num_tokens: int, drafted: Sequence[int] = ()) -> LookUp:
        """Up to `num_tokens` after the sequence and `drafted`; none if their end never occurred.

        One after the other is voted for. Where what followed reaches the end it goes on with
        itself: a text that repeats itself is taken to go on doing so.
        """
        added, matches = list(drafted), list[Match]()
        occurrences = self.occurrences(added)
        while len(matches) < num_tokens and occurrences:
            token, match = winner(occurrences)
            added.append(token)
            matches.append(match)
            if len(matches) < num_tokens:
                occurrences = self.occurrences(added)
        return LookUp(tuple(added[len(drafted) :]), tuple(matches))

    def occurrences(self, drafted: Sequence[int] = ()) -> list[Occurrence]:
        """Where the end of the sequence and `drafted` occurred before, within the sequence."""
        last = [*self.tokens[-MOST_MATCHED:], *drafted][-MOST_MATCHED:]
        found = dict[int, Occurrence]()
        for size in self._sizes:
            for end in self._ends_of(size, last, is_end=not drafted):
                if end not in found:
                    token = self._token_at(end, drafted)
                    found[end] = Occurrence(token, end, self._match_length(end, size, last))
                if len(found) == MOST_OCCURRENCES:
                    return list(found.values())
        return list(found.values())

    def _ends_of(self, size: int, last: Sequence[int], *, is_end: bool) -> Iterator[int]:
        """Where the run of the `last` tokens ended, latest first, the sequence's own end not."""
        if len(last) < size:
            return
        end = self._ends[size].get(tuple(last[-size:]), 0)
        if is_end and end:
            end = self._before[size][end]
        while end:
            yield end
            end = self._before[size][end]

    def _token_at(self, place: int, added: Sequence[int]) -> int:
        """Of the sequence, with what was added to it."""
        size = len(self.tokens)
        return self.tokens[place] if place < size else added[place - size]

    def _match_length(self, end: int, size: int, last: Sequence[int]) -> int:
        """How many tokens before the two places are the same; at least `size`."""
        most = min(len(last), end)
        while size < most and self.tokens[end - 1 - size] == last[-1 - size]:
            size += 1
        return size
