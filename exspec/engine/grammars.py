"""What a grammar allows after which tokens: llguidance over one model's own tokens.

No logits and no text here. What is allowed depends on the generated tokens alone, so a sequence
that moves to another worker, or loses drafts, is followed by standing at its log again.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from typing import TYPE_CHECKING

import numpy as np

from exspec.core.choosing import Grammar
from exspec.core.errors import InvalidRequestError
from exspec.core.models import ModelFacts, TokenizerAssets
from exspec.structured.compiling import check_available, compile_grammar, reason_of, refusal

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_log = logging.getLogger(__name__)

_NUM_COMPILED = 64
_WORD_BITS = 32


class GrammarCompiler:
    """Owns a model's tokenizer in llguidance's form, and the grammars it was given lately."""

    def __init__(self, tokenizer: TokenizerAssets, facts: ModelFacts) -> None:
        self._assets = tokenizer
        self._facts = facts
        self._tokenizer: LLTokenizer | None = None
        self._compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()
        """Matchers at the beginning; the one asked for last is at the end."""

    def prepare(self) -> None:
        """Build the tokenizer now, so that the first grammar does not make other rows wait.

        It holds the interpreter: 0.4 s and 40 MB for 49,000 tokens, in proportion for others. What
        stands in the way is logged here and said to whoever comes with a grammar.
        """
        started = time.perf_counter()
        try:
            self._ready_tokenizer()
        except InvalidRequestError as error:
            _log.info("grammars.unavailable model=%s reason=%s", self._facts.name, error.message)
        else:
            seconds = time.perf_counter() - started
            _log.info("grammars.ready model=%s seconds=%.2f", self._facts.name, seconds)

    def open(self, grammar: Grammar) -> GrammarMatcher:
        """A matcher of its own for a sequence.

        Raises:
            InvalidRequestError: llguidance is missing, the model has no tokenizer that it can read
                or no token to stop with, or the grammar is none.
        """
        tokenizer = self._ready_tokenizer()
        if grammar not in self._compiled:
            self._compiled[grammar] = compile_grammar(grammar, tokenizer)
            if len(self._compiled) > _NUM_COMPILED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        return GrammarMatcher(
            self._compiled[grammar],
            Vocabulary(self._facts.vocab_size, tokenizer.vocab_size, self._facts.stop_token_ids),
        )

    def _ready_tokenizer(self) -> LLTokenizer:
        if self._tokenizer is None:
            check_available("at this worker")
            if not self._assets.tokenizer_json:
                raise refusal(f"structured output needs a tokenizer; {self._facts.name} has none")
            if not self._known_stops():
                raise refusal(
                    f"structured output ends with a stop token; {self._facts.name} has none"
                )
            self._tokenizer = self._build()
        return self._tokenizer

    def _known_stops(self) -> list[int]:
        """The model's stop tokens that the tokenizer has."""
        return [t for t in self._facts.stop_token_ids if t < self._facts.tokenizer_size]

    def _build(self) -> LLTokenizer:
        from llguidance import LLTokenizer

        try:
            # Which tokens stop is our own business: to llguidance they must not be text.
            return LLTokenizer(self._assets.tokenizer_json, eos_token=self._known_stops())
        except ValueError as error:
            raise refusal(
                f"structured output cannot be made with the tokenizer of {self._facts.name}: "
                f"{reason_of(str(error))}"
            ) from error


class Vocabulary:
    """The model's token ids: how many its head knows, how many its tokenizer, which ones stop."""

    def __init__(self, vocab_size: int, tokenizer_size: int, stop_token_ids: Sequence[int]) -> None:
        self.num_words = -(-vocab_size // _WORD_BITS)
        self.num_tokenizer_words = -(-tokenizer_size // _WORD_BITS)
        self.num_known = min(vocab_size, tokenizer_size)
        self.stop_token_ids = frozenset(stop_token_ids)
        self.stops = np.zeros(self.num_words, dtype=np.uint32)  # [num_words], a bit per token
        for token in self.stop_token_ids:
            self.stops[token // _WORD_BITS] |= np.uint32(1 << token % _WORD_BITS)
        self.known = np.zeros(self.num_words, dtype=np.uint32)  # [num_words]
        whole, rest = divmod(self.num_known, _WORD_BITS)
        self.known[:whole] = 0xFFFFFFFF
        self.known[whole:][:1] = (1 << rest) - 1


class GrammarMatcher:
    """Follows one sequence's generated tokens. Owns its llguidance matcher; one thread calls it.

    A model's stop tokens are allowed where the text may end, and there only; after one of them only
    they are. Ids that the tokenizer does not have are never allowed.
    """

    def __init__(self, compiled: LLMatcher, vocabulary: Vocabulary) -> None:
        """`compiled` stands at the beginning and is shared; it is only copied."""
        self._compiled = compiled
        self._vocabulary = vocabulary
        self._matcher = compiled.deep_copy()
        self._consumed = list[int]()
        """What the matcher has taken in: text tokens, no stop tokens."""
        self.problem = ""
        """Why the last `masks` were none at all."""

    def masks(self, generated: Sequence[int], drafts: Sequence[int]) -> np.ndarray:
        """The tokens allowed after `generated`, and after each of `drafts` that is itself allowed.

        int32 `[num_masks, ceil(vocab_size / 32)]`, bit t % 32 of word t // 32 for token t. There
        are `len(drafts) + 1` masks, or fewer: the last one is where a draft is not allowed. There
        are none if `generated` itself is not what the grammar allows, or if llguidance gives up;
        `problem` says which.
        """
        found = list(self._masks([*generated], drafts))
        if not found:
            return np.zeros((0, self._vocabulary.num_words), dtype=np.int32)
        self.problem = ""
        return np.stack(found).view(np.int32)

    def _masks(self, generated: list[int], drafts: Sequence[int]) -> Iterator[np.ndarray]:
        stops = self._vocabulary.stop_token_ids
        num_common = _common_length(self._consumed, generated)
        text = takewhile(lambda token: token not in stops, islice(generated, num_common, None))
        num_text = self._stand_at(num_common, list(text))
        if num_text is None:
            return
        is_ended = num_text < len(generated)
        if is_ended and not self._may_end_with(generated[num_text:]):
            self.problem = "the text ends where the grammar does not let it end"
            return
        for draft in (*drafts, None):
            mask = self._vocabulary.stops if is_ended else self._mask()
            if mask is None:
                return
            yield mask
            if draft is None or not _is_set(mask, draft):
                return
            if draft in stops:
                is_ended = True
            elif not self._consume([draft]):
                return

    def _may_end_with(self, tokens: list[int]) -> bool:
        return self._matcher.is_accepting() and self._vocabulary.stop_token_ids.issuperset(tokens)

    def _stand_at(self, num_common: int, more: list[int]) -> int | None:
        """Take back all but the first `num_common` tokens and take in `more`.

        The number of tokens then taken in; None if not all can be.
        """
        text = self._consumed[:num_common] + more
        num_back = len(self._consumed) - num_common
        if not num_back or self._matcher.rollback(num_back):
            del self._consumed[num_common:]
            if self._consume(more):
                return len(text)
        self._begin_anew()  # llguidance may have given up because of what it saw before
        return len(text) if self._consume(text) else None

    def _begin_anew(self) -> None:
        self._matcher = self._compiled.deep_copy()
        self._consumed.clear()

    def _consume(self, text: list[int]) -> bool:
        """Take tokens in; False, and the problem, if one is not allowed."""
        num_known = next(
            (i for i, token in enumerate(text) if not 0 <= token < self._vocabulary.num_known),
            len(text),
        )
        num_taken = self._matcher.try_consume_tokens(text[:num_known]) if text else 0
        self._consumed += text[:num_taken]
        if num_taken == len(text):
            return True
        self.problem = self._error() or (
            f"the grammar does not allow the generated token {text[num_taken]} at index "
            f"{len(self._consumed)}"
        )
        return False

    def _mask(self) -> np.ndarray | None:
        """What is allowed now `[num_words]`; None, and the problem, if llguidance gives up."""
        words = self._compute()
        if words is None:
            consumed = list(self._consumed)
            self._begin_anew()  # with less behind it, it may not
            words = self._compute() if self._consume(consumed) else None
        if words is None:
            self.problem = self.problem or self._error()
            return None
        vocabulary = self._vocabulary
        mask = np.zeros(vocabulary.num_words, dtype=np.uint32)
        num_both = min(len(mask), len(words))
        mask[:num_both] = words[:num_both]
        mask &= vocabulary.known & ~vocabulary.stops
        if self._matcher.is_accepting():
            mask |= vocabulary.stops
        return mask

    def _compute(self) -> np.ndarray | None:
        """llguidance's own mask; it is all zeros where the text can only end."""
        words = np.zeros(self._vocabulary.num_tokenizer_words, dtype=np.uint32)
        if self._matcher.is_stopped() and not self._matcher.is_error():
            return words
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        return None if self._matcher.is_error() else words

    def _error(self) -> str:
        error = self._matcher.get_error()
        return f"the grammar cannot be followed further: {reason_of(error)}" if error else ""


def _is_set(mask: np.ndarray, token: int) -> bool:
    word, bit = divmod(token, _WORD_BITS)
    return 0 <= word < len(mask) and bool(mask[word] >> np.uint32(bit) & np.uint32(1))


def _common_length(a: list[int], b: list[int]) -> int:
    """Of the longest common prefix."""
    shorter = min(len(a), len(b))
    if a[:shorter] == b[:shorter]:
        return shorter
    return next(i for i in range(shorter) if a[i] != b[i])
