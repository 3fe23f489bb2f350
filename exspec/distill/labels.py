"""What the target chooses at every position of a conversation: its k likeliest tokens. Torch.

One pass over whole conversations; the draft learns from these, not from the tokens that were drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from exspec.distill.texts import Conversation
from exspec.engine.kv.hf_adapter import native_attention

_MAX_BATCH_TOKENS = 4096
"""Padding included."""
_HEAD_PLACES = 128
"""Positions whose logits exist at once: they are soon many times larger than all else."""


@dataclass(frozen=True, slots=True)
class Labels:
    """For A positions, in the order of the conversations and of their tokens.

    `token_ids` int32 `[A, k]` in falling order of probability, `logprobs` float16 `[A, k]`, natural
    logarithms. A conversation has one per token from `text_start` on: where that token was chosen.
    """

    token_ids: torch.Tensor
    logprobs: torch.Tensor


@torch.inference_mode()
def label(
    model: PreTrainedModel,
    conversations: Sequence[Conversation],
    num_labels: int,
    on_tokens: Callable[[int], None],
) -> Labels:
    """The target's `num_labels` likeliest tokens wherever one of a user's or an answer's stands.

    Likelihoods are of the head's plain output: what a model does to it beyond that keeps the order.
    """
    parts: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    with native_attention(model):
        for batch in _batches(conversations):
            found = _label_batch(model, [conversations[i] for i in batch], num_labels)
            parts.update(zip(batch, found, strict=True))
            on_tokens(sum(conversations[i].num_answer_tokens for i in batch))
    ordered = [parts[index] for index in range(len(conversations))]
    return Labels(
        torch.cat([ids for ids, _ in ordered]), torch.cat([logprobs for _, logprobs in ordered])
    )


def _batches(conversations: Sequence[Conversation]) -> Iterator[list[int]]:
    """Indices of conversations of about one length, as many as fit a pass."""
    batch: list[int] = []
    for index in sorted(range(len(conversations)), key=lambda i: len(conversations[i].tokens)):
        size = len(conversations[index].tokens)
        if batch and (len(batch) + 1) * size > _MAX_BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _label_batch(
    model: PreTrainedModel, batch: Sequence[Conversation], num_labels: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Per conversation ids and logprobs `[number of labels, k]`, on the CPU.

    Rows are filled up on the right: with causal attention nothing sees the filling.
    """
    width = max(len(one.tokens) for one in batch)
    fed = torch.zeros((len(batch), width), dtype=torch.long)
    wanted = torch.zeros((len(batch), width), dtype=torch.bool)
    for row, one in enumerate(batch):
        fed[row, : len(one.tokens)] = torch.tensor(one.tokens)
        wanted[row, one.text_start - 1 : len(one.tokens) - 1] = True
    hidden = model.base_model(input_ids=fed.to(model.device), use_cache=False).last_hidden_state
    states = hidden[wanted.to(hidden.device)]
    tops = [_likeliest(model, part, num_labels) for part in states.split(_HEAD_PLACES)]
    counts = [len(one.tokens) - one.text_start for one in batch]
    ids = torch.cat([found for found, _ in tops]).to("cpu", torch.int32).split(counts)
    logprobs = torch.cat([found for _, found in tops]).to("cpu", torch.float16).split(counts)
    return list(zip(ids, logprobs, strict=True))


def _likeliest(
    model: PreTrainedModel, states: torch.Tensor, num_labels: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and logprobs `[M, k]` after hidden states `[M, width]`, likeliest first."""
    head: Any = model.get_output_embeddings()
    logits = head(states).float()
    top = logits.topk(min(num_labels, logits.shape[-1]), dim=-1)
    return top.indices, top.values - logits.logsumexp(dim=-1, keepdim=True)
