"""EXSPEC: rows of a window are grouped into batches of like length (paper, section 4).

Here as the product runs it (groups of any size, an ageing bound, several groups in play), and as
the paper's code does it, for study. Only the choice of rows lives here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter

from coordinator.scheduler.costs import Costs
from coordinator.scheduler.limits import SchedulerLimits
from coordinator.scheduler.policy import has_window_room
from coordinator.scheduler.queueing import Place
from coordinator.scheduler.rows import Row, Worker

LENGTH_BAND = 64
"""Tokens by which lengths in a pass may differ without attention being wasted to speak of."""


class ExSpec:
    """As many groups in play as pay (`costs`), each of rows that go well together.

    A group begins when enough rows are ready, or nothing else is in play. The row that was passed
    over most is always in it; the others are those most like it (of one draft worker, near in
    length, of one column end in a rectangular layout), as long as every row left behind can still
    be served within `max_wait_rounds` (earliest deadline first, checked exactly).
    """

    name = "exspec"

    def has_room(self, target: Worker, limits: SchedulerLimits) -> bool:
        """Up to W rows."""
        return has_window_room(target, limits)

    def next_group(
        self, target: Worker, limits: SchedulerLimits, costs: Costs
    ) -> Sequence[Row] | None:
        """Enough ready rows for a group, or all there are while nothing is in play."""
        num_ready = len(target.ready)
        if not num_ready:
            return None
        num_rows = target.num_live_rows
        num_groups = costs.num_groups(target, num_rows, limits)
        num_in_play = len(target.groups) + len(target.batches)
        if num_in_play and (
            num_in_play >= costs.num_in_play(target) or num_ready < num_rows // num_groups
        ):
            return None
        size = min(num_ready, -(-num_rows // num_groups), limits.batch_size)
        if size >= num_ready:
            return tuple(target.ready.values())
        return choose_alike(tuple(target.ready.values()), size, target, limits)


class PaperExSpec:
    """Algorithm 2 of the paper as its code runs it (`GetBatch`), one batch at a time.

    The first set of exactly B rows of one length, all cold or all warm, in window order; else the
    first B rows, realigned. No ageing: a row of an odd length waits for as long as groups fill.
    """

    name = "exspec-paper"

    def has_room(self, target: Worker, limits: SchedulerLimits) -> bool:
        """Up to W rows."""
        return has_window_room(target, limits)

    def next_group(
        self,
        target: Worker,
        limits: SchedulerLimits,
        costs: Costs,  # noqa: ARG002
    ) -> Sequence[Row] | None:
        """A full group, else the head of the window; nothing while a batch is in play."""
        if not target.ready or target.num_in_round:
            return None
        window = sorted(target.ready.values(), key=attrgetter("place"))
        buckets: dict[tuple[int, bool], list[Row]] = {}
        for row in window:
            bucket = buckets.setdefault((_end_of_paper(row), row.is_cold), [])
            bucket.append(row)
            if len(bucket) == limits.batch_size:
                return bucket
        return window[: limits.batch_size]


def choose_alike(
    ready: Sequence[Row], size: int, target: Worker, limits: SchedulerLimits
) -> Sequence[Row]:
    """The most urgent of the ready rows and those most like it that may go with it.

    `size` of them; more, up to B, if others could not be served in time otherwise.
    """
    urgency = sorted(ready, key=_urgency)
    while size < limits.batch_size and not _can_all_wait(urgency[size:], size, limits.longest_wait):
        size += 1
    first = urgency[0]
    likeness = _column_distance if target.is_rectangular else _length_distance
    by_likeness = sorted(
        urgency,
        key=lambda row: (
            row is not first,
            row.draft is not first.draft,
            likeness(row, first),
        ),
    )
    group, rest = by_likeness[:size], by_likeness[size:]
    if _can_all_wait(rest, size, limits.longest_wait):
        return group
    return urgency[:size]


def _column_distance(row: Row, other: Row) -> int:
    """0: nothing has to move for them to be verified together."""
    return abs(row.end_column - other.end_column)


def _length_distance(row: Row, other: Row) -> int:
    """Lengths that differ little cost nothing in one pass; the more urgent row goes first."""
    return abs(row.length - other.length) // LENGTH_BAND


def _urgency(row: Row) -> tuple[int, Place]:
    """Passed over most first; then as in the queue."""
    return -row.num_passed_over, row.place


def _can_all_wait(rows: Iterable[Row], size: int, max_wait_rounds: int) -> bool:
    """Whether rows passed over now can all still be served in time, `size` of them a round."""
    waits = sorted((row.num_passed_over + 1 for row in rows), reverse=True)
    return all(
        num_passed + place // size <= max_wait_rounds for place, num_passed in enumerate(waits)
    )


def _end_of_paper(row: Row) -> int:
    """The padded length by which the paper's code groups; a cold row's is its prompt's."""
    return row.length if row.is_cold else row.end_column
