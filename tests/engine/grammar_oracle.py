"""What grammars allow, worked out by hand: finite languages, and a vocabulary of longer tokens."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from exspec.core.models import ModelFacts, TokenizerAssets

STOP, OTHER_STOP, SPECIAL = 0, 1, 2
LONGER = ("ab", "abc", "bc", "ca", "00", '"a', '":', "true", "ée")
_ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
NUM_TOKENS = 3 + len(_ALPHABET) + len(LONGER)
VOCAB_SIZE = 300
"""Rows of the head: more than there are tokens."""


def mixed_tokenizer() -> Tokenizer:
    """Two stop tokens, a special one, a token per byte, and some of several bytes."""
    names = ["<stop>", "<halt>", "<special>", *_ALPHABET]
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    names += ["".join(part for part, _ in pieces.pre_tokenize_str(text)) for text in LONGER]
    tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pieces
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names[:3]])
    return tokenizer


def assets() -> TokenizerAssets:
    return TokenizerAssets(mixed_tokenizer().to_str())


def facts(stop_token_ids=(STOP, OTHER_STOP), vocab_size=VOCAB_SIZE) -> ModelFacts:
    return ModelFacts(
        "mixed", "Toy", vocab_size, NUM_TOKENS, "", 99, tuple(stop_token_ids), "", "", 0, ""
    )


def token_bytes() -> dict[int, bytes]:
    """Text of every token that has any."""
    to_byte = {name: bytes([b]) for name, b in _byte_names().items()}
    texts = {3 + i: to_byte[name] for i, name in enumerate(_ALPHABET)}
    first = 3 + len(_ALPHABET)
    return texts | {first + i: text.encode() for i, text in enumerate(LONGER)}


def _byte_names() -> dict[str, int]:
    """GPT-2's printable names of bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


def allowed(mask: np.ndarray) -> set[int]:
    """The ids whose bits are set."""
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return set(np.nonzero(bits)[0].tolist())


class FiniteLanguage:
    """The right answers for a grammar of finitely many texts."""

    def __init__(self, texts: Sequence[str], stops: Sequence[int] = (STOP, OTHER_STOP)) -> None:
        self.texts = {text.encode() for text in texts}
        self.stops = set(stops)
        self._tokens = {t: b for t, b in token_bytes().items() if t not in self.stops}
        self._after = functools.cache(self._find_after)

    def allowed_after(self, tokens: Sequence[int]) -> set[int] | None:
        """None if the tokens themselves are not allowed."""
        prefix = b""
        for index, token in enumerate(tokens):
            if token not in self._after(prefix):
                return None
            if token in self.stops:
                return self.stops if self.stops.issuperset(tokens[index:]) else None
            prefix += self._tokens[token]
        return self._after(prefix)

    def _find_after(self, prefix: bytes) -> set[int]:
        found = {
            token
            for token, more in self._tokens.items()
            if any(text.startswith(prefix + more) for text in self.texts)
        }
        return found | (self.stops if prefix in self.texts else set())

    def is_forced_after(self, tokens: Sequence[int]) -> bool:
        """Whether all texts go on with one and the same byte."""
        prefix = b"".join(self._tokens[token] for token in tokens)
        left = {
            text[len(prefix) : len(prefix) + 1]
            for text in self.texts
            if text[: len(prefix)] == prefix
        }
        return len(left) == 1 and left != {b""}

    def check_masks(
        self, found: Sequence[set[int]], generated: Sequence[int], drafts: Sequence[int]
    ) -> None:
        """Fail unless these may be the masks at `generated` and after drafts.

        Where the text is forced only its usual token may be allowed.
        """
        if self.allowed_after(generated) is None:
            assert not found
            return
        assert found
        for index, mask in enumerate(found):
            before = (*generated, *drafts[:index])
            right = self.allowed_after(before)
            assert mask == right or (
                len(mask) == 1 and mask < right and self.is_forced_after(before)
            )
        num_valid = next(
            (i for i, d in enumerate(drafts[: len(found)]) if d not in found[i]), len(drafts)
        )
        assert len(found) == num_valid + 1
