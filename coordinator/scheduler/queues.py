"""The lists of rows by phase that let the next row be found without a search.

Kept by `State` alone, one call before and one after a row changes its phase.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from coordinator.scheduler.queueing import Place, Turns
from coordinator.scheduler.rows import Phase, Row


class Queues:
    """Owns the queue of rows without a home; keeps the lists of workers for their rows."""

    def __init__(self) -> None:
        self.waiting: list[Row] = []
        """Sorted by place."""
        self.turns = Turns()

    def take_out(self, row: Row) -> None:
        """The row leaves its phase."""
        match row.phase:
            case Phase.READY:
                if row.target is not None:
                    del row.target.ready[row.sequence_id]
            case Phase.WANTS_DRAFT:
                if row.draft is not None:
                    del row.draft.wanting[row.sequence_id]
            case Phase.WAITING:
                del self.waiting[bisect_left(self.waiting, row.place, key=_place)]
                self.turns.leave(row.queue_group, row.place)
            case _:
                pass

    def put_in(self, row: Row) -> None:
        """The row is in its phase now."""
        match row.phase:
            case Phase.READY:
                if row.target is not None:
                    row.target.ready[row.sequence_id] = row
            case Phase.WANTS_DRAFT:
                if row.draft is not None:
                    row.draft.wanting[row.sequence_id] = row
            case Phase.WAITING:
                insort(self.waiting, row, key=_place)
                self.turns.enter(row.queue_group, row.place)
            case _:
                pass


def _place(row: Row) -> Place:
    return row.place
