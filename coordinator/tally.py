"""What is counted of one sequence: its rounds, what became of its drafts, when things happened.

Counts and times only; tokens are the ledger's.
"""

from __future__ import annotations

from collections import Counter

from coordinator.measures import reaching
from exspec.core.generation import RequestTimings, SpeculationStats
from exspec.runtime.clock import Clock


class Tally:
    """Owns one sequence's counts. Every round verified commits its accepted drafts and one token
    more, what is cut off at the end left out.
    """

    def __init__(self, clock: Clock, arrived: float) -> None:
        """`arrived` is when the request came."""
        self._clock = clock
        self._arrived = arrived
        self._started: float | None = None
        self._first_token: float | None = None
        self._num_received = 0
        self._num_useful = 0
        self._drafted = Counter[int]()
        """Rounds by their number of drafts."""
        self._accepted = Counter[int]()
        """Rounds by how many of those were accepted."""
        self._num_looked_up = 0
        self._num_accepted_looked_up = 0

    def note_started(self) -> None:
        """An order goes out; the first one counts."""
        if self._started is None:
            self._started = self._clock()

    def note_drafts(self, num_tokens: int) -> None:
        """A draft worker sent so many proposals."""
        self._num_received += num_tokens

    def note_round(self, num_drafted: int, num_accepted: int, num_committed: int) -> None:
        """A round was verified; `num_committed` tokens of it, the bonus token among them, count."""
        if self._first_token is None:
            self._first_token = self._clock()
        self._drafted[num_drafted] += 1
        self._accepted[num_accepted] += 1
        self._num_useful += min(num_accepted, num_committed)

    def note_looked_up(self, num_drafted: int, num_accepted: int) -> None:
        """So many of a round's drafts, and of those that were accepted, were looked up."""
        self._num_looked_up += num_drafted
        self._num_accepted_looked_up += num_accepted

    @property
    def num_wasted(self) -> int:
        """Proposals that came and were not committed: rejected, cut off, too late, or lost."""
        return self._num_received - self._num_useful

    def stats(self) -> SpeculationStats:
        """How speculation went."""
        return SpeculationStats(
            num_rounds=self._drafted.total(),
            num_draft_tokens=_total(self._drafted),
            num_accepted_tokens=_total(self._accepted),
            num_wasted_tokens=self.num_wasted,
            num_drafts_per_position=reaching(self._drafted),
            num_accepted_per_position=_padded(
                reaching(self._accepted), max(self._drafted, default=0)
            ),
            num_looked_up_tokens=self._num_looked_up,
            num_accepted_looked_up_tokens=self._num_accepted_looked_up,
        )

    def timings(self) -> RequestTimings:
        """Where the time went, until now."""
        now = self._clock()
        started = now if self._started is None else self._started
        first_token = now if self._first_token is None else self._first_token
        return RequestTimings(
            queue_seconds=started - self._arrived,
            time_to_first_token_seconds=first_token - self._arrived,
            total_seconds=now - self._arrived,
        )


def _total(rounds_by_number: Counter[int]) -> int:
    return sum(number * rounds for number, rounds in rounds_by_number.items())


def _padded(counts: tuple[int, ...], size: int) -> tuple[int, ...]:
    """One count for every place that was drafted."""
    return counts + (0,) * (size - len(counts))
