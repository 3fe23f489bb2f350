"""What rules make of logits before anything is drawn: bias, penalties, masks. Defined as in
transformers; frequency and presence as OpenAI and vLLM define them.

Every place of a block is treated as if its tokens had come one by one. A place's numbers depend on
its own rules, tokens and logits alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from exspec.engine.choosing.choosing import Asked

_BANNED = float("-inf")


def apply_rules(scores: torch.Tensor, asked: Sequence[Asked]) -> None:
    """Change scores `[M, vocab_size]` (float64) in place; the places of `asked` follow each other.

    Where no token is left a whole row is -inf.
    """
    start = 0
    for one in asked:
        block = scores[start : start + one.num_places]
        _add_bias(block, one)
        _penalize(block, one)
        _mask(block, one)
        start += one.num_places


def _add_bias(block: torch.Tensor, one: Asked) -> None:
    choosing = one.choosing
    if choosing.rules.logit_bias:
        block[:, choosing.biased_ids] += choosing.biases


def _penalize(block: torch.Tensor, one: Asked) -> None:
    """Repetition over all tokens before a place, the others over those generated before it."""
    rules = one.choosing.rules
    if not rules.has_penalties:
        return
    seen, generated = _count(one, block.shape[1])
    device = block.device
    ids = torch.from_numpy(seen[0]).to(device)
    has_occurred = torch.from_numpy(seen[1] > 0).to(device)  # [places, ids]
    counts = torch.from_numpy(generated).to(device)  # [places, ids]
    repetition, frequency, presence = one.choosing.penalties
    values = block[:, ids]
    if rules.repetition_penalty != 1:
        penalized = torch.where(values < 0, values * repetition, values / repetition)
        values = torch.where(has_occurred, penalized, values)
    if rules.frequency_penalty != 0:
        values = values - frequency * counts
    if rules.presence_penalty != 0:
        values = values - presence * (counts > 0)
    block[:, ids] = values


def _count(one: Asked, vocab_size: int) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """The ids that occur, how often before each place, and how often among generated tokens.

    `[ids]`, `[places, ids]`, `[places, ids]`. Tokens the head has no logit for are left out.
    """
    tokens = np.asarray([*one.tokens, *one.drafts], dtype=np.int64)
    ids, where = np.unique(tokens, return_inverse=True)
    num_before, num_prompt = len(one.tokens), one.choosing.rules.num_prompt_tokens
    is_draft = np.arange(len(tokens)) >= num_before
    steps = np.zeros((one.num_places, len(ids)), dtype=np.int64)
    steps[0] = np.bincount(where[:num_before], minlength=len(ids))
    steps[np.arange(1, one.num_places), where[is_draft]] = 1
    occurrences = steps.cumsum(axis=0)
    prompt = np.bincount(where[:num_prompt], minlength=len(ids))
    is_known = ids < vocab_size
    return (
        (ids[is_known], occurrences[:, is_known]),
        (occurrences - prompt)[:, is_known],
    )


def _mask(block: torch.Tensor, one: Asked) -> None:
    choosing, rules = one.choosing, one.choosing.rules
    if choosing.forbidden is not None:
        block.masked_fill_(choosing.forbidden, _BANNED)
    num_early = choosing.num_early_tokens - (one.first_position - rules.num_prompt_tokens)
    if num_early > 0:
        block[:num_early, choosing.ending_ids] = _BANNED
    if choosing.words_after:
        _mask_bad_words(block, one)
    if choosing.matcher is not None:
        generated = one.tokens[rules.num_prompt_tokens :]
        allowed = _unpack(choosing.matcher.masks(generated, one.drafts), block.shape[1])
        block[: len(allowed)].masked_fill_(~torch.from_numpy(allowed).to(block.device), _BANNED)
        block[len(allowed) :] = _BANNED


def _mask_bad_words(block: torch.Tensor, one: Asked) -> None:
    """The last token of a word whose others are the tokens just before the place."""
    longest = max(len(p) for words in one.choosing.words_after.values() for p, _ in words)
    tokens = [*one.tokens[-longest:], *one.drafts]
    num_before = len(tokens) - len(one.drafts)
    for place in range(one.num_places):
        before = tokens[: num_before + place]
        words = one.choosing.words_after.get(before[-1], ()) if before else ()
        last = [token for prefix, token in words if tuple(before[-len(prefix) :]) == prefix]
        if last:
            block[place, torch.tensor(last, device=block.device)] = _BANNED


def _unpack(masks: np.ndarray, vocab_size: int) -> np.ndarray:
    """Bits `[num_masks, words]` of 32 to booleans `[num_masks, vocab_size]`; what is beyond is not
    allowed."""
    bits = np.unpackbits(masks.astype("<i4").view(np.uint8), axis=1, bitorder="little")
    missing = max(0, vocab_size - bits.shape[1])
    return np.pad(bits, ((0, 0), (0, missing)))[:, :vocab_size].astype(bool)
