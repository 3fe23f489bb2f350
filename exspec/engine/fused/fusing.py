"""Whether a draft model runs as a fused body, and with which weights: decided once, at loading.

What cannot be fused, or computes otherwise than the model's own modules do, is run by those.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import torch
from torch import nn
from transformers import PreTrainedModel

from exspec.core.models import ModelFacts
from exspec.engine.fused.head import FusedHead
from exspec.engine.fused.linears import Precision, has_fast_int8
from exspec.engine.fused.reading import FusedModel, NotFusableError, read_fused
from exspec.engine.kv.hf_adapter import AttentionShape
from exspec.engine.self_test import TOLERANCES, logits_of_two_passes, run_modules, sample_rows

logger = logging.getLogger(__name__)

AUTO = "auto"
MODULES = "modules"
"""Not fused: transformers' modules, as a target runs."""

_NUM_TESTED_TOKENS = 512
_ROUGH_TOLERANCES = {Precision.INT8: 0.25, Precision.BFLOAT16: 0.1}
"""Largest difference of a logit, as a share of the largest logit."""


def fuse_draft(
    model: PreTrainedModel, attention: AttentionShape, facts: ModelFacts, wanted: str
) -> FusedModel | None:
    """The fused body of a draft model, or None for its own modules; the reason is logged.

    `wanted` is "auto", or a `Precision`, after which full precision is tried. Automatic
    is int8 where a processor is fast at it, since a step's time is that of reading its weights.
    """
    places = {model.device, *attention.devices}
    if any(place.type != "cpu" for place in places):
        _tell(facts, "it is not on a CPU")
        return None
    for precision in _to_try(wanted, model.dtype):
        try:
            fused = _tested(model, attention, facts.max_length, precision)
        except (NotFusableError, AttributeError, RuntimeError, TypeError, ValueError) as error:
            _tell(facts, f"{precision.value}: {' '.join(str(error).split()):.200}")
        else:
            logger.info("draft.fused model=%s weights=%s", facts.name, precision.value)
            return fused
    return None


def give_up_layers(model: PreTrainedModel) -> None:
    """Free the layers of a model that only its fused body runs from now on."""
    model.base_model.layers = nn.ModuleList()


def _to_try(wanted: str, dtype: torch.dtype) -> Iterator[Precision]:
    """The best first."""
    if wanted != AUTO:
        yield Precision(wanted)
    elif dtype == torch.float32 and has_fast_int8():
        yield Precision.INT8
    if wanted != Precision.FULL.value:
        yield Precision.FULL


def _tell(facts: ModelFacts, reason: str) -> None:
    logger.warning("draft.not_fused model=%s reason=%s", facts.name, reason)


@torch.inference_mode()
def _tested(
    model: PreTrainedModel, attention: AttentionShape, max_length: int, precision: Precision
) -> FusedModel:
    """The body, if it computes what the modules do: over rows of our KV memory, with a rewind.

    Raises:
        NotFusableError: it does not.
    """
    fused = read_fused(model, attention, precision)
    tolerance = _ROUGH_TOLERANCES.get(precision, TOLERANCES.get(model.dtype, 0.2))
    num_rows = fused.head.out_features
    ids = torch.arange(0, num_rows, max(1, num_rows // _NUM_TESTED_TOKENS))
    head = FusedHead(fused, ids.tolist())
    rows = sample_rows(model, max_length)
    ours, _ = logits_of_two_passes(head.logits, model, attention, rows)
    own, _ = logits_of_two_passes(run_modules(model), model, attention, rows)
    own = own[:, ids]
    scale = tolerance * own.abs().amax().clamp_min(torch.finfo(own.dtype).tiny)
    difference = (ours - own).abs().amax()
    lost = own.amax(dim=-1) - own.gather(1, ours.argmax(dim=-1, keepdim=True))[:, 0]
    if not (difference <= scale and (lost <= scale).all()):
        share = float(tolerance * difference / scale)
        raise NotFusableError(f"logits differ from the modules' by {share:.2g} of the largest")
    return fused
