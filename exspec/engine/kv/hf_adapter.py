"""Where our KV memory meets transformers: the only file that knows its caches and attention hooks.

A model runs with our attention function (registered under `ATTENTION_NAME`) and our `Cache`. For
every layer the model calls `cache.update` and then the attention function; the first writes K and V
into the store, the second reads them back by the pass plan. No scheduling, no token values.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from transformers import AttentionInterface, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache

from exspec.core.errors import UnsupportedModelError
from exspec.engine.kv.attention import attend
from exspec.engine.kv.plan import PassPlan
from exspec.engine.kv.spread import KvMemory

ATTENTION_NAME = "exspec"
"""Deliberately without a mask function: transformers then builds no mask of its own."""

_IGNORABLE = frozenset(
    {"position_ids", "use_cache", "output_attentions", "output_hidden_states", "return_dict"}
    | {"position_embeddings", "cache", "past_key_values", "cache_position", "logits_to_keep"}
    | {"is_causal", "layer_idx", "output_router_logits", "dropout"}
)
"""Keyword arguments attention may get that do not change its result in inference."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What the model's attention layers look like; the same in every layer.

    `devices` is where each layer's keys were; a layer's KV memory belongs there.
    """

    num_layers: int
    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    devices: tuple[torch.device, ...] = field(default=(), compare=False)


class PassCache(Cache):
    """The cache handed to the model for one pass. Writes go straight to the store."""

    def __init__(self, store: KvMemory, plan: PassPlan) -> None:
        super().__init__(layers=[])
        self._store = store
        self._plan = plan
        self._plans = {store.shape.device: plan}
        """The plan on every device met in this pass."""
        self._layer_index = -1

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_args: object,
        **_kwargs: object,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write `[1, kv_heads, size, dim]` of a layer, and return them as they are.

        The pass may be larger than its N tokens; what fills it up is left out.
        """
        num_tokens = self._plan.num_tokens
        self._store.write(
            layer_idx,
            self._plan_on(key_states.device).write_addresses,
            key_states[0][:, :num_tokens],
            value_states[0][:, :num_tokens],
        )
        self._layer_index = layer_idx
        return key_states, value_states

    def attend(self, queries: torch.Tensor, scaling: float | None) -> torch.Tensor:
        """Attention `[size, heads, dim]` over the layer written last; 0 for the filling."""
        assert self._layer_index >= 0, "attention without an update of its layer"
        attended = attend(
            self._store, self._layer_index, self._plan_on(queries.device), queries, scaling
        )
        num_missing = queries.shape[1] - self._plan.num_tokens
        if not num_missing:
            return attended
        return torch.cat((attended, attended.new_zeros(num_missing, *attended.shape[1:])))

    def _plan_on(self, device: torch.device) -> PassPlan:
        """The plan where a layer is; moved there once a pass."""
        plan = self._plans.get(device)
        if plan is None:
            plan = self._plans[device] = self._plan.on(device)
        return plan

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        """Rows have different lengths, so there is none to tell; positions are given instead.

        The probe has made sure that the answer has no effect.
        """
        return 0


class ProbeCache(Cache):
    """Remembers the shapes and queries of a model's layers, stores nothing, claims any length."""

    def __init__(self, length: int = 0) -> None:
        super().__init__(layers=[])
        self._length = length
        self.was_asked = False
        self.seen: list[torch.Tensor] = []
        self.layers_seen: list[int] = []
        self.devices: list[torch.device] = []
        self.shapes: list[tuple[int, int, int, int]] = []
        self._returned: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_args: object,
        **_kwargs: object,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Note the layer and what it gets back."""
        self.layers_seen.append(layer_idx)
        self.devices.append(key_states.device)
        self._returned = key_states, value_states
        return key_states, value_states

    def attend(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """Note the shapes and answer zeros `[N, heads, value_dim]`.

        Our attention reads keys and values from the store, so a model that computes others from
        what the cache returned (latent attention) would be served wrongly.
        """
        returned, self._returned = self._returned, None
        if returned is None or keys is not returned[0] or values is not returned[1]:
            raise UnsupportedModelError("its attention does not get what the cache returned")
        num_heads, num_tokens, _ = queries.shape
        dims = keys.shape[1], keys.shape[3], values.shape[3]
        self.shapes.append((num_heads, *dims))
        self.seen += [queries, keys]
        return queries.new_zeros(num_tokens, num_heads, values.shape[3])

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        """What it was told to say."""
        self.was_asked = True
        return self._length


_current_cache: ContextVar[PassCache | ProbeCache] = ContextVar("exspec_cache")


def _attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    scaling: float | None = None,
    **kwargs: object,
) -> tuple[torch.Tensor, None]:
    """Called in every layer: query `[1, heads, N, dim]` to output `[1, N, heads, dim]`."""
    _refuse_unknown(module, kwargs)
    if not getattr(module, "is_causal", True):
        raise UnsupportedModelError(f"{type(module).__name__} attends to later positions")
    if attention_mask is not None:
        raise UnsupportedModelError(f"{type(module).__name__} brings an attention mask of its own")
    cache = _current_cache.get()
    if isinstance(cache, ProbeCache):
        return cache.attend(query[0], key, value)[None], None
    return cache.attend(query[0], scaling)[None], None


def _refuse_unknown(module: torch.nn.Module, kwargs: dict[str, object]) -> None:
    """Sinks, soft caps, windows, biases, …: an argument we do not know may change the result."""
    for name, value in kwargs.items():
        if value is not None and name not in _IGNORABLE:
            raise UnsupportedModelError(
                f"{type(module).__name__} needs attention with {name!r}, which is not supported"
            )


AttentionInterface.register(ATTENTION_NAME, _attention_forward)


def cache_keyword(model: PreTrainedModel) -> str:
    """The forward argument that takes the cache (renamed in transformers 5.2x)."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def adopt(model: PreTrainedModel) -> None:
    """Make the model call our attention function from now on.

    Raises:
        UnsupportedModelError: if its modelling code has no pluggable attention.
    """
    # It compares every pass's tokens with the pad id, to give advice that is wrong here.
    setattr(model, "warn_if_padding_and_no_attention_mask", _no_advice)  # noqa: B010
    if _attention_name(model) != ATTENTION_NAME:
        model.set_attn_implementation(ATTENTION_NAME)
    if _attention_name(model) != ATTENTION_NAME:
        raise UnsupportedModelError(
            f"{type(model).__name__} does not use transformers' pluggable attention"
        )


def _no_advice(*_args: object) -> None:
    """In place of transformers' warning about pad tokens."""


@contextmanager
def native_attention(model: PreTrainedModel) -> Iterator[None]:
    """Run the model with transformers' own attention inside the block, then put back what was."""
    before = _attention_name(model)
    model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")  # noqa: SLF001
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@contextmanager
def our_attention(model: PreTrainedModel) -> Iterator[None]:
    """Run the model with our attention function inside the block, then put back what was."""
    before = _attention_name(model)
    adopt(model)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _attention_name(model: PreTrainedModel) -> str:
    """The attention the model runs with now."""
    return model.config._attn_implementation or "eager"  # noqa: SLF001


def native_cache(model: PreTrainedModel) -> Cache:
    """A growing cache of transformers' own, for the reference decoder."""
    return DynamicCache(config=model.config)


@contextmanager
def attending(cache: PassCache | ProbeCache) -> Iterator[None]:
    """Make `cache` the one our attention function reads from inside the block."""
    token = _current_cache.set(cache)
    try:
        yield
    finally:
        _current_cache.reset(token)
