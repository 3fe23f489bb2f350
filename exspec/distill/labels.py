"""What the target chooses at every position of an answer: its k likeliest tokens. Torch.

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


@dataclass(frozen=True, slots=True)
class Labels:
    """For A answer positions, in the order of the conversations and of their tokens.

    `token_ids` int32 `[A, k]` in falling order of probability, `logprobs` float16 `[A, k]`, natural
    logarithms. Position i of an answer is where its token i was chosen.
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
    """The target's `num_labels` likeliest tokens wherever a token of an answer was chosen.

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
    """Per conversation ids and logprobs `[num_answer_tokens, k]`, on the CPU.

    Rows are filled up on the right: with causal attention nothing sees the filling.
    """
    width = max(len(one.tokens) for one in batch)
    ids = torch.zeros((len(batch), width), dtype=torch.long)
    wanted = torch.zeros((len(batch), width), dtype=torch.bool)
    for row, one in enumerate(batch):
        ids[row, : len(one.tokens)] = torch.tensor(one.tokens)
        wanted[row, one.answer_start - 1 : len(one.tokens) - 1] = True
    hidden = model.base_model(input_ids=ids.to(model.device), use_cache=False).last_hidden_state
    head: Any = model.get_output_embeddings()
    logits = head(hidden[wanted.to(hidden.device)]).float()
    top = logits.topk(min(num_labels, logits.shape[-1]), dim=-1)
    logprobs = top.values - logits.logsumexp(dim=-1, keepdim=True)
    counts = [one.num_answer_tokens for one in batch]
    found_ids = top.indices.to("cpu", torch.int32).split(counts)
    found_logprobs = logprobs.to("cpu", torch.float16).split(counts)
    return list(zip(found_ids, found_logprobs, strict=True))
