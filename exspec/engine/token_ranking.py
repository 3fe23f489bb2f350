"""Tokens from the likeliest to the rarest, as far as a tokenizer's own file tells. No counts.

A vocabulary is learned by frequency: merges of byte-pair encoding are found from the commonest
pair on, and a unigram model stores logarithms of probabilities. Ids alone are not enough: converted
SentencePiece vocabularies have single characters, commas and full stops among them, at their end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NUM_FIRST_CHARACTERS = 256
"""All bytes of a byte-level vocabulary; of others the commonest characters."""


@dataclass(frozen=True, slots=True)
class TokenRanking:
    """`ranked` are a tokenizer's tokens, the likeliest first, but for `special` ones, rising."""

    ranked: tuple[int, ...] = ()
    special: tuple[int, ...] = ()


def rank_tokens(tokenizer_json: str) -> TokenRanking:
    """The ranking of a tokenizer in the `tokenizers` library's format; empty for no tokenizer.

    Tokens that somebody added by hand, such as tags and runs of spaces, come before learned ones.
    """
    if not tokenizer_json:
        return TokenRanking()
    tokenizer = json.loads(tokenizer_json)
    added = {token["id"]: token.get("special", False) for token in tokenizer["added_tokens"]}
    special = {token_id for token_id, is_special in added.items() if is_special}
    in_order = dict.fromkeys((*sorted(added), *_ranked(tokenizer["model"])))
    return TokenRanking(tuple(i for i in in_order if i not in special), tuple(sorted(special)))


def _ranked(model: Mapping[str, Any]) -> Sequence[int]:
    """All ids of the vocabulary."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):  # unigram: pairs of a token and its log probability
        scores = [score for _, score in vocabulary]
        return sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    in_order = sorted(vocabulary, key=vocabulary.__getitem__)
    if model.get("merges"):
        in_order = _by_merges(in_order, model["merges"])
    return [vocabulary[token] for token in in_order]


def _by_merges(tokens: Sequence[str], merges: Sequence[str | Sequence[str]]) -> list[str]:
    """Of tokens in the order of their ids: characters and merged tokens, then all others.

    Characters begin, and the rest of them are spread evenly over the merged ones. Others are bytes
    for characters the vocabulary lacks, and what no merge leads to.
    """
    pairs = (merge.split(" ", 1) if isinstance(merge, str) else merge for merge in merges)
    merged_order = dict.fromkeys("".join(pair) for pair in pairs)
    known = set(tokens)
    merged = [token for token in merged_order if token in known]
    characters = [token for token in tokens if len(token) == 1 and token not in merged_order]
    first, later = characters[:NUM_FIRST_CHARACTERS], characters[NUM_FIRST_CHARACTERS:]
    places = [(i / len(later), token) for i, token in enumerate(later)]
    places += [(i / len(merged), token) for i, token in enumerate(merged)]
    spread = [token for _, token in sorted(places, key=lambda place: place[0])]
    placed = {*first, *spread}
    return [*first, *spread, *(token for token in tokens if token not in placed)]
