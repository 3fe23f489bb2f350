"""Counting what rounds look like, from orders and outcomes. Only counts; nothing acts on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from coordinator.scheduler.commands import Verify, VerifyOrder
from coordinator.scheduler.events import DraftOutcome, VerifyOutcome
from coordinator.simulation.results import RoundFigures
from coordinator.simulation.spreads import ratio
from exspec.core.ids import SequenceId, WorkerId


class RoundMeasures:
    """Owns the sums over rounds, and how many rounds each row was passed over."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._num_rounds = 0
        self._num_row_rounds = 0
        self._num_prefill_batches = 0
        self._num_single = 0
        self._num_grouped = 0
        self._num_full_grouped = 0
        self._num_decided = 0
        self._num_committed = 0
        self._num_drafted = 0
        self._num_verified = 0
        self._num_overdue = 0
        self._draft_lengths: Counter[int] = Counter()
        self._rounds_at: Counter[WorkerId] = Counter()
        self._last_round: dict[SequenceId, tuple[WorkerId, int]] = {}
        self._max_waited = 0

    @property
    def num_rounds(self) -> int:
        """Rounds that were sent to be verified."""
        return self._num_rounds

    def note_verify(self, command: Verify) -> None:
        """A verify batch goes out."""
        deciding = [order for order in command.orders if not order.is_prefill]
        if not deciding:
            self._num_prefill_batches += 1
            return
        self._num_rounds += 1
        self._num_row_rounds += len(deciding)
        for order in deciding:
            self._draft_lengths[order.num_draft_tokens] += 1
            self._num_verified += order.num_draft_tokens
        if len(deciding) == 1:
            self._num_single += 1
        elif command.alignment is None or command.alignment.is_noop:
            self._num_grouped += 1
            self._num_full_grouped += len(deciding) == self._batch_size
        self._note_waits(command.worker_id, deciding)

    def note_drafted(self, outcomes: Sequence[DraftOutcome]) -> None:
        """A draft worker answered."""
        self._num_drafted += sum(outcome.num_drafted for outcome in outcomes)

    def note_overdue(self) -> None:
        """A draft batch was not waited for any longer."""
        self._num_overdue += 1

    def note_verified(self, outcomes: Sequence[VerifyOutcome]) -> None:
        """A target answered."""
        for outcome in outcomes:
            self._num_decided += outcome.num_committed > 0
            self._num_committed += outcome.num_committed
            if outcome.is_finished:
                self._last_round.pop(outcome.sequence_id, None)

    def figures(self) -> RoundFigures:
        """All of it. A round that its target did not live to answer has no share in acceptance."""
        num_many = self._num_rounds - self._num_single
        return RoundFigures(
            num_rounds=self._num_rounds,
            num_row_rounds=self._num_row_rounds,
            num_prefill_batches=self._num_prefill_batches,
            num_single_row_rounds=self._num_single,
            grouping_rate=ratio(self._num_grouped, num_many),
            full_grouping_rate=ratio(self._num_full_grouped, num_many),
            aligned_rate=ratio(self._num_grouped + self._num_single, self._num_rounds),
            acceptance_length=ratio(self._num_committed, self._num_decided),
            rows_per_round=ratio(self._num_row_rounds, self._num_rounds),
            max_waited_rounds=self._max_waited,
            num_drafted=self._num_drafted,
            num_verified=self._num_verified,
            num_accepted=self._num_committed - self._num_decided,
            num_overdue=self._num_overdue,
            draft_lengths=dict(sorted(self._draft_lengths.items())),
        )

    def _note_waits(self, target: WorkerId, deciding: Sequence[VerifyOrder]) -> None:
        self._rounds_at[target] += 1
        now = self._rounds_at[target]
        for order in deciding:
            name = order.key.sequence_id
            home, before = self._last_round.get(name, (target, now - 1))
            if home == target:
                self._max_waited = max(self._max_waited, now - before - 1)
            self._last_round[name] = (target, now)
