"""What a model's attention layers ask for, seen in one small pass before any KV memory exists.

A configuration cannot show everything (`exspec.engine.support`); the calls a model makes do.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel

from exspec.core.errors import UnsupportedModelError
from exspec.engine.kv.hf_adapter import (
    AttentionShape,
    ProbeCache,
    attending,
    cache_keyword,
    our_attention,
)
from exspec.engine.loaded import num_embeddings_of

_NUM_TOKENS = 4
_OTHER_LENGTH = 1 << 20
"""What the cache claims to hold the second time: more than any interval a model counts in."""


@torch.inference_mode()
def probe_attention(model: PreTrainedModel) -> AttentionShape:
    """Run a few tokens through the model to see what its attention layers ask for.

    Raises:
        UnsupportedModelError: for attention we would not compute exactly.
    """
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise UnsupportedModelError(f"{type(model).__name__} cannot be given explicit positions")
    cache = ProbeCache()
    _run(model, cache)
    if cache.was_asked:
        longer = ProbeCache(_OTHER_LENGTH)
        _run(model, longer)
        _check_same(model, cache, longer)
    return _shape_of(model, cache)


def _run(model: PreTrainedModel, cache: ProbeCache) -> None:
    """One pass over a few tokens; its logits are the last that the cache has seen.

    Different ones, as a pad token's embedding is often zero and would hide everything.
    """
    positions = torch.arange(_NUM_TOKENS, device=model.device)[None]
    ids = positions % num_embeddings_of(model)
    arguments = {cache_keyword(model): cache, "use_cache": True}
    with our_attention(model), attending(cache), refusing_failures(model):
        logits = model(input_ids=ids, position_ids=positions, **arguments).logits
    cache.seen.append(logits)


def _check_same(model: PreTrainedModel, cache: ProbeCache, longer: ProbeCache) -> None:
    """Many models ask for the cache's length; few make anything of it when positions are given."""
    pairs = zip(cache.seen, longer.seen, strict=True)
    if not all(torch.allclose(a, b, rtol=0, atol=0, equal_nan=True) for a, b in pairs):
        raise UnsupportedModelError(
            f"{type(model).__name__} computes from the length of the cache, not from positions"
        )


@contextmanager
def refusing_failures(model: PreTrainedModel) -> Iterator[None]:
    """A model that trips over our cache needs more of it than keys and values per position."""
    name = type(model).__name__
    try:
        yield
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{name} cannot be served: {error.message}") from error
    except (AttributeError, IndexError, KeyError, NotImplementedError) as error:
        raise UnsupportedModelError(
            f"{name} does not work with a cache of keys and values per position: {error!r}"
        ) from error
    except (RuntimeError, TypeError, ValueError) as error:
        raise UnsupportedModelError(
            f"{name} failed in a small pass with our cache and attention: {error!r}"
        ) from error


def _shape_of(model: PreTrainedModel, cache: ProbeCache) -> AttentionShape:
    """The one shape all layers share."""
    name = type(model).__name__
    if not cache.shapes or cache.layers_seen != list(range(len(cache.shapes))):
        raise UnsupportedModelError(
            f"{name} does not keep one KV entry per attention layer (updates of layers "
            f"{cache.layers_seen} for {len(cache.shapes)} attention calls)"
        )
    if len(set(cache.shapes)) != 1:
        raise UnsupportedModelError(f"{name} has attention layers of different shapes")
    return AttentionShape(len(cache.shapes), *cache.shapes[0], tuple(cache.devices))
