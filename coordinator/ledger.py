"""The token log: the truth about every sequence. Commits blocks, cuts them, streams them.

The scheduler knows lengths, workers hold caches; only the ledger knows the tokens, and it forgets
nothing until the sequence ends. No asyncio: events go to a callable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from coordinator.output import Output, SequenceSpec
from coordinator.prompt_logprobs import PromptLogprobs
from coordinator.tally import Tally
from exspec.core.acceptance import FinishReason, looked_up_among
from exspec.core.choosing import ChoiceRules, TokenLogprobs
from exspec.core.errors import ExspecError
from exspec.core.generation import Completed, Delta, Event, Failed, Usage
from exspec.core.ids import SequenceId
from exspec.runtime.clock import Clock

Sink = Callable[[Event | Failed], None]
"""Where a sequence's events go; the last one is Completed or Failed."""


@dataclass(frozen=True, slots=True)
class Drafts:
    """Proposals of a draft worker; the last `num_looked_up` of them were looked up."""

    tokens: tuple[int, ...] = ()
    num_looked_up: int = 0

    def first(self, num_tokens: int) -> Drafts:
        """The first of them."""
        taken = self.tokens[:num_tokens]
        return Drafts(taken, looked_up_among(len(taken), len(self.tokens), self.num_looked_up))


@dataclass(slots=True)
class _Sequence:
    spec: SequenceSpec
    sink: Sink
    output: Output
    tally: Tally
    log: list[int]
    rules: ChoiceRules | None
    """What a worker has to hear now."""
    prompt_logprobs: PromptLogprobs | None
    """None: they are not wanted, or were delivered."""
    staged: Drafts = Drafts()

    @property
    def num_generated_tokens(self) -> int:
        return len(self.log) - len(self.spec.prompt_tokens)


@dataclass(frozen=True, slots=True)
class Commit:
    """What a verified block came to: `num_committed` tokens, and whether the sequence ended."""

    num_committed: int
    is_finished: bool


class Ledger:
    """Owns the sequences that have not ended; `on_completed` hears of those that end well, and
    `on_wasted` of every one that ends, how many draft tokens were made for it in vain.
    """

    def __init__(
        self,
        clock: Clock,
        on_completed: Callable[[Completed], None] = lambda _: None,
        on_wasted: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._clock = clock
        self._on_completed = on_completed
        self._on_wasted = on_wasted
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
        tally = Tally(self._clock, arrived)
        scores = None
        if spec.rules is not None and spec.rules.num_prompt_logprobs is not None:
            scores = PromptLogprobs(len(spec.prompt_tokens))
        sequence = _Sequence(spec, sink, output, tally, log, spec.rules, scores)
        self._sequences[spec.sequence_id] = sequence
        if output.finish is not None:
            self._complete(sequence, output.finish)

    # What workers are sent

    def tokens(self, sequence_id: SequenceId, start: int, end: int) -> tuple[int, ...]:
        """`log[start:end]` of a sequence."""
        return tuple(self._sequences[sequence_id].log[start:end])

    def rules(self, sequence_id: SequenceId) -> ChoiceRules | None:
        """How its tokens are chosen from here on; None: the best logit wins, nothing is asked."""
        return self._sequences[sequence_id].rules

    def scored_token(self, sequence_id: SequenceId, position: int) -> int | None:
        """The prompt's token at a position if its logprobs are still wanted."""
        sequence = self._sequences[sequence_id]
        if sequence.prompt_logprobs is None or position >= len(sequence.spec.prompt_tokens):
            return None
        return sequence.log[position]

    def note_started(self, sequence_id: SequenceId) -> None:
        """An order for a sequence goes out."""
        self._sequences[sequence_id].tally.note_started()

    # What workers answered

    def note_drafts(self, sequence_id: SequenceId, num_tokens: int) -> None:
        """A draft worker sent so many proposals, too late ones as well."""
        sequence = self._sequences.get(sequence_id)
        if sequence is None:
            self._on_wasted(num_tokens)
        else:
            sequence.tally.note_drafts(num_tokens)

    def stage_draft(self, sequence_id: SequenceId, drafts: Drafts) -> None:
        """Keep proposals for the sequence's next verify; ignored once it ended."""
        sequence = self._sequences.get(sequence_id)
        if sequence is not None:
            sequence.staged = drafts

    def take_draft(self, sequence_id: SequenceId, num_tokens: int) -> Drafts:
        """The first `num_tokens` staged proposals; the rest is dropped."""
        sequence = self._sequences[sequence_id]
        taken, sequence.staged = sequence.staged.first(num_tokens), Drafts()
        return taken

    def note_prompt_logprobs(
        self, sequence_id: SequenceId, start: int, logprobs: Sequence[TokenLogprobs]
    ) -> None:
        """Those of the prompt's tokens from position `start` on; ignored if nobody waits."""
        sequence = self._sequences.get(sequence_id)
        if sequence is not None and sequence.prompt_logprobs is not None and logprobs:
            sequence.prompt_logprobs.add(start, logprobs)

    def lacking(self, sequence_id: SequenceId, num_decided: int, num_logprobs: int) -> str:
        """What of a decision its client asked for was left out; empty: nothing."""
        sequence = self._sequences.get(sequence_id)
        if sequence is None or sequence.rules is None:
            return ""
        if sequence.rules.num_logprobs is not None and num_logprobs < num_decided:
            return "logprobs of its tokens"
        scores = sequence.prompt_logprobs
        if scores is not None and (position := scores.first_missing) is not None:
            return f"logprobs of the prompt from position {position} on"
        return ""

    def note_looked_up(self, sequence_id: SequenceId, num_drafted: int, num_accepted: int) -> None:
        """Of a round about to be committed: drafts that were looked up, and the accepted ones."""
        self._sequences[sequence_id].tally.note_looked_up(num_drafted, num_accepted)

    def commit(
        self,
        sequence_id: SequenceId,
        draft_tokens: Sequence[int],
        num_accepted: int,
        bonus: int,
        logprobs: Sequence[TokenLogprobs] = (),
    ) -> Commit:
        """Append what a round decided, cut at stop token, cap or stop string, and stream it.

        `logprobs`: of the accepted tokens and the bonus token, if they are wanted.
        """
        sequence = self._sequences[sequence_id]
        output = sequence.output
        shown = output.advance((*draft_tokens[:num_accepted], bonus))
        num_committed = len(shown.tokens)
        sequence.tally.note_round(len(draft_tokens), num_accepted, num_committed)
        sequence.log.extend(shown.tokens)
        scores = _delivered(sequence)
        sequence.sink(Delta(shown.text, shown.tokens, tuple(logprobs[:num_committed]), scores))
        if output.finish is not None:
            self._complete(sequence, output.finish)
        return Commit(num_committed, is_finished=output.finish is not None)

    # Ends

    def cancel(self, sequence_id: SequenceId) -> bool:
        """End a sequence because its caller went away; False if it had ended."""
        return self._remove(sequence_id) is not None

    def fail(self, sequence_id: SequenceId, error: ExspecError) -> None:
        """End a sequence with an error; ignored if it had ended."""
        sequence = self._remove(sequence_id)
        if sequence is not None:
            sequence.sink(Failed(error))

    def max_length(self, sequence_id: SequenceId) -> int:
        """Most tokens the sequence may come to, the prompt counted."""
        return self._sequences[sequence_id].spec.max_length

    def num_generated(self, sequence_id: SequenceId) -> int:
        """Tokens committed so far, the resumed ones counted, the prompt not."""
        return self._sequences[sequence_id].num_generated_tokens

    def _remove(self, sequence_id: SequenceId) -> _Sequence | None:
        sequence = self._sequences.pop(sequence_id, None)
        if sequence is not None:
            self._on_wasted(sequence.tally.num_wasted)
        return sequence

    def _complete(self, sequence: _Sequence, finish: FinishReason) -> None:
        self._remove(sequence.spec.sequence_id)
        completed = Completed(
            finish_reason=finish,
            usage=Usage(len(sequence.spec.prompt_tokens), sequence.num_generated_tokens),
            speculation=sequence.tally.stats(),
            timings=sequence.tally.timings(),
            stop_string=sequence.output.stop_string,
        )
        self._on_completed(completed)
        sequence.sink(completed)


def _delivered(sequence: _Sequence) -> tuple[TokenLogprobs, ...]:
    """The prompt's logprobs, the first time tokens go out; no worker is asked for them again."""
    scores, sequence.prompt_logprobs = sequence.prompt_logprobs, None
    if scores is None or sequence.rules is None:
        return ()
    rest = replace(sequence.rules, num_prompt_logprobs=None)
    sequence.rules = None if rest.is_plain else rest
    return scores.take()
