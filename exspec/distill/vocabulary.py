"""Which tokens a draft chooses among: the ones its target writes most. Counting only, no text."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from exspec.core.errors import InvalidRequestError


def choose_vocabulary(
    counts: torch.Tensor, size: int, always: Sequence[int] = ()
) -> tuple[int, ...]:
    """The rising ids of the `size` tokens seen most often, `always` among them.

    `counts` `[vocab_size]` says how often the target wrote each token. Of tokens seen equally often
    the lower id is taken: tokenizers number tokens by how common they are. A size of 0, or of the
    whole vocabulary and more, is every id.

    Raises:
        InvalidRequestError: if `always` holds no token ids, or more than `size` of them.
    """
    vocab_size = counts.numel()
    wanted = sorted(set(always))
    if wanted and not 0 <= wanted[0] <= wanted[-1] < vocab_size:
        raise InvalidRequestError(
            f"a draft vocabulary of ids in [0, {vocab_size}) cannot hold {wanted[0]} to "
            f"{wanted[-1]}",
            field="draft_vocab",
        )
    if size <= 0 or size >= vocab_size:
        return tuple(range(vocab_size))
    if len(wanted) > size:
        raise InvalidRequestError(
            f"a draft vocabulary of {size} has no room for the {len(wanted)} special and stop "
            "tokens of this target",
            field="draft_vocab",
        )
    order = torch.sort(counts.cpu(), descending=True, stable=True).indices.tolist()
    is_wanted = set(wanted)
    others = (token for token in order if token not in is_wanted)
    chosen = wanted + [token for token, _ in zip(others, range(size - len(wanted)), strict=False)]
    return tuple(sorted(chosen))


def essential_tokens(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None
) -> tuple[int, ...]:
    """Rising ids that must be in every draft vocabulary: what ends an answer, and special tokens.

    Files may name ids that the model does not have; those are left out.
    """
    ids: set[object] = set(tokenizer.all_special_ids) if tokenizer is not None else set()
    for holder in (getattr(model, "generation_config", None), model.config):
        stated = getattr(holder, "eos_token_id", None)
        ids.update(stated if isinstance(stated, list | tuple) else [stated])
    vocab_size = int(model.config.get_text_config().vocab_size)
    return tuple(sorted(i for i in ids if isinstance(i, int) and 0 <= i < vocab_size))
