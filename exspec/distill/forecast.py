"""What a plan will come to, from the target's configuration alone: parameters and bytes on disk.

So layers the target does not have, and a disk that is too small, are told before hours of work.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from exspec.distill.disk import check_room, told_when_full
from exspec.distill.growing import check_start
from exspec.distill.plan import DistillPlan
from exspec.distill.shrinking import choose_layers, layers_of, shrunk
from exspec.distill.weights import freeze_tables
from exspec.engine.gguf_reading import reading_once
from exspec.engine.loading import as_our_errors, quiet_transformers
from exspec.engine.sources import ModelSource, find_source
from exspec.engine.support import check_config

_PROMPT_SHARE = 2
"""Tokens of a conversation, prompt included, per token of its answer; about."""
_TOKEN_BYTES, _LABEL_BYTES = 4, 6
_CHECKPOINT_BYTES = 2 * 3 * 4
"""Per trained parameter: weight and two moments in float32, twice while a new file is written."""
_SPARE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Forecast:
    """A draft to come: `layers` are the target's it starts from, of `num_target_layers`.

    `num_trained` of its parameters are trained. Bytes are upper estimates.
    """

    architecture: str
    layers: tuple[int, ...]
    num_target_layers: int
    width: int
    is_narrow: bool
    num_parameters: int
    num_trained: int
    text_bytes: int
    checkpoint_bytes: int
    export_bytes: int

    @property
    def num_bytes(self) -> int:
        """All of it."""
        return self.text_bytes + self.checkpoint_bytes + self.export_bytes


def foresee(plan: DistillPlan) -> Forecast:
    """What the plan will come to. Reads no weights.

    Raises:
        ModelNotFoundError, UnsupportedModelError: if the target cannot be loaded, or not be served.
        InvalidRequestError: if the target has no such layers, or cannot be made so narrow, or the
            draft to start from has another shape.
    """
    config = _config_of(find_source(plan.target, plan.gguf_file, plan.revision), plan.target)
    check_config(config)
    num_layers = layers_of(config)
    smaller = shrunk(config, plan)
    width = smaller.get_text_config().hidden_size
    is_narrow = width != config.get_text_config().hidden_size
    student = _shape_of(smaller, plan.target)
    if not is_narrow:
        freeze_tables(student)
    if plan.start_from is not None:
        start = _config_of(find_source(plan.start_from, None, None), plan.start_from)
        check_start(_shape_of(start, plan.start_from), student, plan.start_from)
    number = sum(part.numel() for part in student.parameters())
    num_trained = sum(part.numel() for part in student.parameters() if part.requires_grad)
    return Forecast(
        type(student).__name__,
        choose_layers(num_layers, plan),
        num_layers,
        width,
        is_narrow,
        number,
        num_trained,
        plan.num_tokens * (_PROMPT_SHARE * _TOKEN_BYTES + plan.num_labels * _LABEL_BYTES),
        num_trained * _CHECKPOINT_BYTES,
        2 * number + _SPARE_BYTES,
    )


def check_disk(plan: DistillPlan, forecast: Forecast) -> None:
    """Whether there is room for all that is still to be written.

    Raises:
        CapacityError: if not, with the path and the bytes needed.
        InvalidRequestError: if there can be nothing at that path.
    """
    what, at_least = "the draft model", forecast.export_bytes
    with told_when_full(plan.out, at_least, what):
        files = plan.work_dir.glob("*") if plan.work_dir.is_dir() else ()
        written = sum(path.stat().st_size for path in files if path.is_file())
        check_room(plan.out, max(at_least, forecast.num_bytes - written), f"making {what}")


def _config_of(source: ModelSource, name: str) -> PretrainedConfig:
    with quiet_transformers(), reading_once(), as_our_errors(name):
        gguf = {} if source.gguf_file is None else {"gguf_file": source.gguf_file}
        return AutoConfig.from_pretrained(source.location, revision=source.revision, **gguf)


def _shape_of(config: PretrainedConfig, name: str) -> PreTrainedModel:
    """The model without its numbers."""
    with quiet_transformers(), as_our_errors(name), torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)
