"""What a sequence's tokens come to: where they end, and the text a client is shown for them.

All of it is a function of the tokens alone. The text shown after some tokens is the same however
rounds cut them, so it is also what a client has that was sent these tokens by a coordinator that is
gone: `Output.replay` takes them without showing anything, and what follows fits on exactly.
No events, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.text import TextStream
from exspec.core.acceptance import FinishReason, cut_block
from exspec.core.choosing import ChoiceRules
from exspec.core.errors import InvalidRequestError
from exspec.core.ids import SequenceId
from exspec.core.stopping import StopStringMatcher


@dataclass(frozen=True, slots=True)
class SequenceSpec:
    """What a sequence starts from. `max_length` bounds prompt and generated tokens together.

    `resumed_tokens` were generated before, and the client has them. `rules` None: the best logit
    wins. Nothing but `max_length` ends it within the first `min_tokens` generated tokens; a stop
    string belongs to the text if `is_stop_included`.
    """

    sequence_id: SequenceId
    prompt_tokens: tuple[int, ...]
    max_length: int
    stop_token_ids: frozenset[int]
    stop: tuple[str, ...]
    resumed_tokens: tuple[int, ...] = ()
    rules: ChoiceRules | None = None
    min_tokens: int = 0
    is_stop_included: bool = False


@dataclass(frozen=True, slots=True)
class Shown:
    """What a block of new tokens came to: those that count, and the text they complete."""

    tokens: tuple[int, ...]
    text: str


class Output:
    """One sequence's end and text. Owns what is held back of the text."""

    def __init__(self, spec: SequenceSpec, stream: TextStream) -> None:
        self._spec = spec
        self._stream = stream
        self._matcher = StopStringMatcher(spec.stop, is_included=spec.is_stop_included)
        self._length = len(spec.prompt_tokens)
        self.finish: FinishReason | None = None
        """Why the sequence has ended; None while it goes on."""

    @property
    def stop_string(self) -> str:
        """The stop string that was met; empty without one."""
        return self._matcher.matched or ""

    def replay(self) -> None:
        """Take the resumed tokens; their text is where it belongs. Once, before `advance`.

        Raises:
            InvalidRequestError: the sequence ends before the last of them.
        """
        tokens = self._spec.resumed_tokens
        if tokens and len(self.advance(tokens).tokens) < len(tokens):
            raise InvalidRequestError(
                f"resume has {len(tokens)} tokens; the generation ends after "
                f"{self._length - len(self._spec.prompt_tokens)} of them",
                field="resume",
            )

    def advance(self, tokens: Sequence[int]) -> Shown:
        """Take new tokens, at least one, up to where the sequence ends.

        Text is given out token by token: what could be part of a character or of a stop string
        is held back, and given out with the token that settles it, or with the last one.
        """
        num_unstoppable = self._num_unstoppable
        block = cut_block(
            tokens,
            stop_token_ids=self._spec.stop_token_ids,
            num_remaining=self._spec.max_length - self._length,
            num_unstoppable=num_unstoppable,
        )
        pieces: list[str] = []
        for index, token in enumerate(block.tokens):
            take = self._matcher.pass_by if index < num_unstoppable else self._matcher.push
            pieces.append(take(self._stream.push(token)))
            if self._matcher.matched is not None:
                break
        taken = block.tokens[: len(pieces)]
        self._length += len(taken)
        self.finish = block.finish
        if self.finish is not None:
            pieces.append(self._held_back())
        if self._matcher.matched is not None:
            self.finish = FinishReason.STOP_STRING
        return Shown(taken, "".join(pieces))

    @property
    def _num_unstoppable(self) -> int:
        """How many more tokens there must be before one may end the sequence."""
        num_generated = self._length - len(self._spec.prompt_tokens)
        return max(0, self._spec.min_tokens - num_generated)

    def _held_back(self) -> str:
        """At the end, the text held back so far; nothing follows a stop string."""
        if self._matcher.matched is not None:
            return ""
        is_early = self._length - len(self._spec.prompt_tokens) <= self._spec.min_tokens
        take = self._matcher.pass_by if is_early else self._matcher.push
        text = take(self._stream.flush())
        return text if self._matcher.matched is not None else text + self._matcher.flush()
