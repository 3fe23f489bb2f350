"""From a worker's settings to a warm model: what both workers do before they register."""

from __future__ import annotations

import logging

import torch

from exspec.core.ids import Role
from exspec.engine.kv.layout import KvLayoutName
from exspec.engine.loading import LoadedModel, ModelSettings, load_model
from exspec.engine.model_runner import ModelRunner
from exspec.runtime.settings import ModelWorkerSettings

logger = logging.getLogger(__name__)

DEFAULT_MAX_MODEL_LEN = 2048


def load_worker_model(
    settings: ModelWorkerSettings, *, role: Role, model: str, num_slots: int
) -> tuple[LoadedModel, ModelRunner]:
    """Load `model`, preallocate KV for `num_slots` sequences and run a small pass.

    A draft that comes with a vocabulary of its own chooses among those tokens only: the target
    decides, so that costs acceptance at most, and saves most of the head.

    Raises:
        ModelNotFoundError, UnsupportedModelError: the model cannot be loaded or served.
    """
    if settings.num_threads is not None:
        torch.set_num_threads(settings.num_threads)
    loaded = load_model(_model_settings(settings, model))
    runner = ModelRunner(
        loaded,
        layout=KvLayoutName(settings.kv_layout),
        num_slots=num_slots,
        capacity=min(loaded.facts.max_length, settings.max_model_len or DEFAULT_MAX_MODEL_LEN),
        choices_among=(loaded.draft_vocabulary or None) if role is Role.DRAFT else None,
    )
    runner.warm_up()
    logger.info(
        "model.loaded model=%s parameters=%d dtype=%s device=%s layout=%s slots=%d capacity=%d "
        "kv_mib=%.1f",
        loaded.facts.name,
        loaded.facts.num_parameters,
        loaded.facts.dtype,
        loaded.facts.device,
        settings.kv_layout,
        num_slots,
        runner.capacity,
        runner.kv_bytes / 2**20,
    )
    return loaded, runner


def _model_settings(settings: ModelWorkerSettings, model: str) -> ModelSettings:
    return ModelSettings(
        model=model,
        revision=settings.revision,
        gguf_file=settings.gguf_file,
        dtype=settings.dtype,
        device=settings.device,
        trust_remote_code=settings.trust_remote_code,
        served_name=settings.served_model_name,
        max_model_len=settings.max_model_len,
    )
