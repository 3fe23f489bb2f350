"""Grouped-query attention of one pass over the KV memory, without repeating K and V.

The query heads that share a KV head are folded into the query length. Knows a plan and a store; no
model and no transformers.
"""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from exspec.engine.kv.plan import AttentionGroup, PassPlan
from exspec.engine.kv.spread import KvMemory


def attend(
    store: KvMemory, layer_index: int, plan: PassPlan, queries: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    """Attention of queries `[heads, N, dim]` in packing order: `[N, heads, value_dim]`."""
    outputs = [_attend_group(store, layer_index, group, queries, scaling) for group in plan.groups]
    # Some models take a view of the result that only contiguous memory allows.
    return outputs[0].contiguous() if len(outputs) == 1 else torch.cat(outputs)


def _attend_group(
    store: KvMemory,
    layer_index: int,
    group: AttentionGroup,
    queries: torch.Tensor,
    scaling: float | None,
) -> torch.Tensor:
    """One group's tokens `[num_tokens, heads, value_dim]`."""
    keys, values = store.view(layer_index, group.slots, group.columns)
    folded = _fold(queries, group, store.shape.num_kv_heads)
    attended = scaled_dot_product_attention(
        folded, keys, values, attn_mask=group.mask, scale=scaling
    )
    return _unfold(attended, group)


def _fold(queries: torch.Tensor, group: AttentionGroup, num_kv_heads: int) -> torch.Tensor:
    """`[heads, N, dim]` to `[R, kv_heads, heads / kv_heads * T, dim]`."""
    own = queries[:, group.first_token : group.first_token + group.num_tokens]
    if group.gather is not None:
        own = own.index_select(1, group.gather)
    dim = own.shape[-1]
    split = own.reshape(num_kv_heads, -1, group.num_rows, group.num_queries, dim)
    return split.permute(2, 0, 1, 3, 4).reshape(group.num_rows, num_kv_heads, -1, dim)


def _unfold(attended: torch.Tensor, group: AttentionGroup) -> torch.Tensor:
    """`[R, kv_heads, groups * T, dim]` back to the group's `[num_tokens, heads, dim]`."""
    num_kv_heads, dim = attended.shape[1], attended.shape[3]
    split = attended.reshape(group.num_rows, num_kv_heads, -1, group.num_queries, dim)
    flat = split.permute(0, 3, 1, 2, 4).reshape(group.num_rows * group.num_queries, -1, dim)
    return flat if group.scatter is None else flat.index_select(0, group.scatter)
