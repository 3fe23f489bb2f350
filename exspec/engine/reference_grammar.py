"""The judge of grammars: llguidance, asked anew at every position about all tokens so far.

Nothing is kept or rolled back between positions, which is what the fast way has to get right.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from llguidance import LLMatcher, LLTokenizer

from exspec.core.choosing import Grammar, GrammarKind
from exspec.engine.loaded import LoadedModel

_GRAMMARS = {
    GrammarKind.JSON_SCHEMA: LLMatcher.grammar_from_json_schema,
    GrammarKind.REGEX: LLMatcher.grammar_from_regex,
    GrammarKind.LARK: LLMatcher.grammar_from_lark,
}


class ReferenceGrammar:
    """One grammar over one model's tokenizer."""

    def __init__(self, loaded: LoadedModel, grammar: Grammar) -> None:
        facts = loaded.facts
        self._stop_token_ids = facts.stop_token_ids
        self._tokenizer = _tokenizer(
            loaded.tokenizer.tokenizer_json, facts.vocab_size, facts.stop_token_ids
        )
        self._grammar = _GRAMMARS[grammar.kind](grammar.text)

    def allowed(self, generated: Sequence[int]) -> Sequence[int]:
        """The ids that may follow; the stop tokens where the text may end."""
        matcher = LLMatcher(self._tokenizer, self._grammar)
        for token in generated:
            if not matcher.consume_token(token):
                return ()
        if matcher.is_stopped():
            return self._stop_token_ids
        mask = matcher.compute_bitmask()
        return [token for token in range(len(mask) * 8) if mask[token // 8] >> (token % 8) & 1]


@functools.lru_cache(maxsize=4)
def _tokenizer(
    tokenizer_json: str, vocab_size: int, stop_token_ids: tuple[int, ...]
) -> LLTokenizer:
    return LLTokenizer(tokenizer_json, n_vocab=vocab_size, eos_token=list(stop_token_ids))
