"""The token log: the truth about every sequence. Commits blocks, cuts them, streams them.

The scheduler knows lengths, workers hold caches; only the ledger knows the tokens, and it forgets
nothing until the sequence ends. No asyncio: events go to a callable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coordinator.output import Output, SequenceSpec
from exspec.core.acceptance import FinishReason
from exspec.core.errors import ExspecError
from exspec.core.generation import (
    Completed,
    Delta,
    Event,
    Failed,
    RequestTimings,
    SpeculationStats,
    Usage,
)
from exspec.core.ids import SequenceId
from exspec.runtime.clock import Clock

Sink = Callable[[Event | Failed], None]
"""Where a sequence's events go; the last one is Completed or Failed."""


@dataclass(slots=True)
class _Sequence:
    spec: SequenceSpec
    sink: Sink
    output: Output
    arrived: float
    log: list[int]
    staged: tuple[int, ...] = ()
    started: float | None = None
    first_token: float | None = None
    num_rounds: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0

    @property
    def num_generated_tokens(self) -> int:
        return len(self.log) - len(self.spec.prompt_tokens)


@dataclass(frozen=True, slots=True)
class Commit:
    """What a verified block came to: `num_committed` tokens, and whether the sequence ended."""

    num_committed: int
    is_finished: bool


class Ledger:
    """Owns the sequences that have not ended; `on_completed` hears of those that end well."""

    def __init__(
        self, clock: Clock, on_completed: Callable[[Completed], None] = lambda _: None
    ) -> None:
        self._clock = clock
        self._on_completed = on_completed
        self._sequences: dict[SequenceId, _Sequence] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, sequence_id: SequenceId) -> bool:
        return sequence_id in self._sequences

    @property
    def sequence_ids(self) -> tuple[SequenceId, ...]:
        """Sequences that have not ended."""
        return tuple(self._sequences)

    def open(self, spec: SequenceSpec, output: Output, sink: Sink, arrived: float) -> None:
        """Begin a sequence; its log is the prompt and what is resumed, which `output` has replayed.

        `arrived` is when its request came. It is completed at once if what is resumed ends it.
        """
        log = [*spec.prompt_tokens, *spec.resumed_tokens]
        sequence = _Sequence(spec, sink, output, arrived, log)
        self._sequences[spec.sequence_id] = sequence
        if output.finish is not None:
            self._complete(sequence, output.finish)

    def tokens(self, sequence_id: SequenceId, start: int, end: int) -> tuple[int, ...]:
        """`log[start:end]` of a sequence."""
        return tuple(self._sequences[sequence_id].log[start:end])

    def note_started(self, sequence_id: SequenceId) -> None:
        """The first order for a sequence goes out."""
        sequence = self._sequences[sequence_id]
        if sequence.started is None:
            sequence.started = self._clock()

    def stage_draft(self, sequence_id: SequenceId, draft_tokens: Sequence[int]) -> None:
        """Keep proposals for the sequence's next verify; ignored once it ended."""
        sequence = self._sequences.get(sequence_id)
        if sequence is not None:
            sequence.staged = tuple(draft_tokens)

    def take_draft(self, sequence_id: SequenceId, num_tokens: int) -> tuple[int, ...]:
        """The first `num_tokens` staged proposals; the rest is dropped."""
        sequence = self._sequences[sequence_id]
        taken, sequence.staged = sequence.staged[:num_tokens], ()
        return taken

    def commit(
        self, sequence_id: SequenceId, draft_tokens: Sequence[int], num_accepted: int, bonus: int
    ) -> Commit:
        """Append what a round decided, cut at stop token, cap or stop string, and stream it."""
        sequence = self._sequences[sequence_id]
        sequence.num_rounds += 1
        sequence.num_draft_tokens += len(draft_tokens)
        sequence.num_accepted_tokens += num_accepted
        if sequence.first_token is None:
            sequence.first_token = self._clock()
        output = sequence.output
        shown = output.advance((*draft_tokens[:num_accepted], bonus))
        sequence.log.extend(shown.tokens)
        sequence.sink(Delta(shown.text, shown.tokens))
        if output.finish is not None:
            self._complete(sequence, output.finish)
        return Commit(len(shown.tokens), is_finished=output.finish is not None)

    def cancel(self, sequence_id: SequenceId) -> bool:
        """End a sequence because its caller went away; False if it had ended."""
        return self._sequences.pop(sequence_id, None) is not None

    def fail(self, sequence_id: SequenceId, error: ExspecError) -> None:
        """End a sequence with an error; ignored if it had ended."""
        sequence = self._sequences.pop(sequence_id, None)
        if sequence is not None:
            sequence.sink(Failed(error))

    def max_length(self, sequence_id: SequenceId) -> int:
        """Most tokens the sequence may come to, the prompt counted."""
        return self._sequences[sequence_id].spec.max_length

    def num_generated(self, sequence_id: SequenceId) -> int:
        """Tokens committed so far, the resumed ones counted, the prompt not."""
        return self._sequences[sequence_id].num_generated_tokens

    def _complete(self, sequence: _Sequence, finish: FinishReason) -> None:
        del self._sequences[sequence.spec.sequence_id]
        now = self._clock()
        started = now if sequence.started is None else sequence.started
        first_token = now if sequence.first_token is None else sequence.first_token
        completed = Completed(
            finish_reason=finish,
            usage=Usage(len(sequence.spec.prompt_tokens), sequence.num_generated_tokens),
            speculation=SpeculationStats(
                sequence.num_rounds, sequence.num_draft_tokens, sequence.num_accepted_tokens
            ),
            timings=RequestTimings(
                queue_seconds=started - sequence.arrived,
                time_to_first_token_seconds=first_token - sequence.arrived,
                total_seconds=now - sequence.arrived,
            ),
            stop_string=sequence.output.stop_string,
        )
        self._on_completed(completed)
        sequence.sink(completed)
