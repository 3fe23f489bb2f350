"""The shell around the scheduler: turns commands into batches and replies into events.

It owns the scheduler and the ledger and runs on the event loop only. Which worker is connected is
the pool's business, which text a client sees the ledger's.
"""

from __future__ import annotations

from functools import partial

from coordinator import replies
from coordinator.accounting import Accounting, num_looked_up_accepted
from coordinator.batches import draft_batch, verify_batch
from coordinator.flights import Flight, log_entry
from coordinator.ledger import Drafts, Ledger
from coordinator.links import Batch
from coordinator.outside import Senders, Timing
from coordinator.scheduler.commands import Command, Draft, Release, Verify
from coordinator.scheduler.events import (
    DraftCompleted,
    DraftOutcome,
    DraftOverdue,
    Event,
    PassCost,
    RefusalExpired,
    SequenceArrived,
    SequenceCancelled,
    VerifyCompleted,
    VerifyOutcome,
    WorkerDraining,
    WorkerJoined,
    WorkerLost,
)
from coordinator.scheduler.replay import Recorder
from coordinator.scheduler.scheduler import Scheduler
from exspec.core.errors import ExspecError, PeerError, ProtocolError
from exspec.core.ids import BatchId, SequenceId, WorkerId
from exspec.core.rounds import (
    DraftBatch,
    DraftReply,
    EntryStatus,
    PassTimings,
    VerifyBatch,
    VerifyEntry,
    VerifyReply,
    VerifyResult,
)

REFUSAL_SECONDS = 0.5
"""How long a target that has no room for us, though it holds nothing of ours, is left alone."""


class Driver:
    """Owns scheduler and ledger; everything that changes them comes through here."""

    def __init__(
        self,
        scheduler: Scheduler,
        ledger: Ledger,
        accounting: Accounting,
        senders: Senders,
        timing: Timing,
        recorder: Recorder | None = None,
    ) -> None:
        self.scheduler = scheduler
        """For reading."""
        self.ledger = ledger
        """For reading, and for opening sequences."""
        self._accounting = accounting
        self._senders = senders
        self._timing = timing
        self._decide = scheduler.handle if recorder is None else recorder.handle
        self._in_flight: dict[BatchId, Flight] = {}

    # Members

    def join(self, event: WorkerJoined) -> None:
        """A worker is connected, warm and empty."""
        self._handle(event)

    def drain(self, worker_id: WorkerId) -> None:
        """A worker takes no new rows."""
        self._accounting.note_draining(self.scheduler.rows_on(worker_id))
        self._handle(WorkerDraining(worker_id))

    def lose(self, worker_id: WorkerId) -> None:
        """A worker is gone; replies of its batches in flight would not be believed any more."""
        keys = [key for key, flight in self._in_flight.items() if flight.worker_id == worker_id]
        lost = [self._in_flight.pop(key).batch for key in keys]
        for batch in lost:
            if isinstance(batch, DraftBatch):
                self._accounting.note_draft_failure()
            else:
                self._accounting.forget(entry.key.sequence_id for entry in batch.entries)
        self._accounting.note_lost(self.scheduler.rows_on(worker_id))
        self._handle(WorkerLost(worker_id))
        for batch in lost:
            if isinstance(batch, VerifyBatch):
                self._give_up_killers(batch)

    # Sequences

    def arrive(self, event: SequenceArrived) -> None:
        """A sequence is in the ledger and wants to grow."""
        self._handle(event)

    def cancel(self, sequence_id: SequenceId) -> None:
        """Its caller went away."""
        if self.ledger.cancel(sequence_id):
            self._accounting.forget((sequence_id,))
            self._handle(SequenceCancelled(sequence_id))

    def fail(self, sequence_id: SequenceId, error: ExspecError) -> None:
        """It cannot go on."""
        if sequence_id in self.ledger:
            self._accounting.note_failure()
            self._accounting.forget((sequence_id,))
            self.ledger.fail(sequence_id, error)
            self._handle(SequenceCancelled(sequence_id))

    # Replies

    def take_reply(self, worker_id: WorkerId, reply: DraftReply | VerifyReply) -> None:
        """A worker answered a batch; late and unknown ones are dropped.

        Raises:
            ProtocolError: the reply does not fit its batch.
        """
        flight = self._in_flight.get(reply.batch_id)
        if flight is None or flight.worker_id != worker_id:
            return
        batch = flight.batch
        if isinstance(batch, VerifyBatch) and isinstance(reply, VerifyReply):
            replies.check_verify(batch, reply)
            del self._in_flight[reply.batch_id]
            self._take_verify(flight, batch, reply)
        elif isinstance(batch, DraftBatch) and isinstance(reply, DraftReply):
            replies.check_draft(batch, reply)
            del self._in_flight[reply.batch_id]
            self._take_draft(flight, reply)
        else:
            raise ProtocolError(f"worker {worker_id} answered in another role")

    def _take_draft(self, flight: Flight, reply: DraftReply) -> None:
        worker_id = flight.worker_id
        self._accounting.note_draft(reply)
        outcomes: list[DraftOutcome] = []
        for result in reply.results:
            sequence_id = result.key.sequence_id
            self.ledger.note_drafts(sequence_id, len(result.draft_tokens))
            if result.status is not EntryStatus.OK:
                log_entry("draft", worker_id, result)
            elif self.scheduler.awaits_draft(sequence_id, reply.batch_id):
                drafts = Drafts(result.draft_tokens, result.num_looked_up)
                self.ledger.stage_draft(sequence_id, drafts)
            outcomes.append(
                DraftOutcome(
                    sequence_id,
                    result.status,
                    len(result.draft_tokens),
                    replies.believed_length(result),
                    result.num_looked_up,
                )
            )
        cost = self._cost(flight, reply.timings)
        self._handle(DraftCompleted(worker_id, reply.batch_id, tuple(outcomes), cost))

    def _take_verify(self, flight: Flight, batch: VerifyBatch, reply: VerifyReply) -> None:
        cost = self._cost(flight, reply.timings)
        for result in reply.results:
            error = self._fatal_error(result)
            if error is not None:
                self.fail(result.key.sequence_id, error)
        outcomes = tuple(
            self._commit(flight.worker_id, entry, result)
            for entry, result in zip(batch.entries, reply.results, strict=True)
        )
        num_committed = sum(outcome.num_committed for outcome in outcomes)
        self._accounting.note_verify(batch, reply, num_committed, is_grouped=flight.is_grouped)
        self._handle(VerifyCompleted(flight.worker_id, reply.batch_id, outcomes, cost))
        if self._is_refusing_all(flight.worker_id):
            self._timing.call_later(REFUSAL_SECONDS, partial(self._ask_again, flight.worker_id))

    def _cost(self, flight: Flight, timings: PassTimings) -> PassCost:
        elapsed = self._timing.clock() - flight.sent
        return PassCost(timings.total_seconds, elapsed, timings.queue_seconds)

    def _give_up_waiting(self, batch_id: BatchId) -> None:
        """A draft batch used its patience up; if it was answered meanwhile, nothing happens."""
        flight = self._in_flight.get(batch_id)
        if flight is not None:
            self._accounting.note_overdue()
            self._handle(DraftOverdue(flight.worker_id, batch_id))

    def _commit(
        self, worker_id: WorkerId, entry: VerifyEntry, result: VerifyResult
    ) -> VerifyOutcome:
        sequence_id = entry.key.sequence_id
        if result.status is not EntryStatus.OK:
            log_entry("verify", worker_id, result)
            return VerifyOutcome(sequence_id, result.status, 0, replies.believed_length(result))
        if result.bonus_token is None or sequence_id not in self.ledger:
            return VerifyOutcome(sequence_id, result.status, 0, result.kv_length)
        self.ledger.note_looked_up(
            sequence_id, entry.num_looked_up, num_looked_up_accepted(entry, result)
        )
        commit = self.ledger.commit(
            sequence_id,
            entry.draft_tokens,
            result.num_accepted,
            result.bonus_token,
            result.logprobs,
        )
        return VerifyOutcome(
            sequence_id, result.status, commit.num_committed, result.kv_length, commit.is_finished
        )

    def _fatal_error(self, result: VerifyResult) -> ExspecError | None:
        """What ends its sequence, if anything does; takes what it says of the prompt."""
        sequence_id = result.key.sequence_id
        ledger = self.ledger
        error = replies.fatal_error(
            result,
            self.scheduler.num_failures(sequence_id),
            has_rules=sequence_id in ledger and ledger.rules(sequence_id) is not None,
        )
        if error is not None or result.status is not EntryStatus.OK:
            return error
        ledger.note_prompt_logprobs(sequence_id, result.prompt_start, result.prompt_logprobs)
        if result.bonus_token is None:
            return None
        left_out = ledger.lacking(sequence_id, result.num_accepted + 1, len(result.logprobs))
        return PeerError(f"the target left out {left_out}") if left_out else None

    def _is_refusing_all(self, worker_id: WorkerId) -> bool:
        """Whether a target says it is full, though it holds nothing of ours."""
        worker = self.scheduler.state.workers.get(worker_id)
        return worker is not None and worker.is_full and not worker.rows

    def _ask_again(self, worker_id: WorkerId) -> None:
        if self._is_refusing_all(worker_id):
            self._handle(RefusalExpired(worker_id))

    def _give_up_killers(self, batch: VerifyBatch) -> None:
        """A sequence whose passes keep taking workers down may not take all of them down."""
        for entry in batch.entries:
            sequence_id = entry.key.sequence_id
            if self.scheduler.num_failures(sequence_id) >= replies.MAX_FAILURES:
                message = (
                    f"{replies.MAX_FAILURES} passes failed in a row: each time the target was lost"
                )
                self.fail(sequence_id, PeerError(message))

    # Commands

    def _handle(self, event: Event) -> None:
        for command in self._decide(event):
            self._execute(command)

    def _execute(self, command: Command) -> None:
        match command:
            case Draft():
                self._send(command.worker_id, draft_batch(command, self.ledger))
                late = partial(self._give_up_waiting, command.batch_id)
                self._timing.call_later(command.patience_seconds, late)
            case Verify():
                is_grouped = command.alignment is None or command.alignment.is_noop
                batch = verify_batch(command, self.ledger)
                self._send(command.worker_id, batch, is_grouped=is_grouped)
            case Release():
                self._senders.release(command.worker_id, command.sequence_ids)

    def _send(self, worker_id: WorkerId, batch: Batch, *, is_grouped: bool = False) -> None:
        now = self._timing.clock()
        self._in_flight[batch.batch_id] = Flight(worker_id, batch, now, is_grouped)
        for entry in batch.entries:
            self.ledger.note_started(entry.key.sequence_id)
        self._accounting.note_orders(batch)
        self._senders.send(worker_id, batch)
