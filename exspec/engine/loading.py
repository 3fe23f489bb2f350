"""Loads a model for serving: settings in, a model with its facts and tokenizer assets out.

Also the one place that decides the dtype. Where the parts go is `exspec.engine.spread`, running
the model `exspec.engine.model_runner`.
"""

from __future__ import annotations

import logging
import pickle
import re
import struct
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.utils import logging as hf_logging

from exspec.core.errors import InvalidRequestError, ModelNotFoundError, UnsupportedModelError
from exspec.engine.draft_vocabulary import read_draft_vocabulary
from exspec.engine.facts import facts_of
from exspec.engine.fused.fusing import MODULES, fuse_draft
from exspec.engine.gguf_reading import reading_once
from exspec.engine.loaded import LoadedModel
from exspec.engine.packing import pack_linears
from exspec.engine.probe import probe_attention
from exspec.engine.ranks import Ranks
from exspec.engine.self_test import check_computation
from exspec.engine.sources import ModelSource, find_source
from exspec.engine.spread import check_spread, find_spread
from exspec.engine.support import check_config
from exspec.engine.tokenizer_assets import NO_TOKENIZER, TokenizerReading, read_tokenizer

_log = logging.getLogger(__name__)

_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}


_LAYER_NAME = re.compile(r"\b(?:layers|h|blocks)\.(\d+)\.")

_UNLOADABLE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    RuntimeError,
    SafetensorError,
    StrictDataclassError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
    struct.error,
)
"""What transformers raises for files it cannot make a model of."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Which model to load and how.

    `model` is a Hugging Face name, a directory, a .gguf file, or an alias
    (`smollm2-135m-instruct`, `smollm2-draft`); `gguf_file` names a file inside a directory.
    `dtype` is "auto" (float32 on a CPU, else the checkpoint's) or one of float16, bfloat16,
    float32, float64. `device` is "auto" or torch's name of one. `trust_remote_code` lets the
    model's own Python code run. `served_name` defaults to `model`; `max_model_len` (tokens, prompt
    included) to what the model is made for. `device_map` (auto, balanced, sequential, or JSON) puts
    layers on several devices; `ranks` are the processes that share the model. `draft_weights` is
    for a draft model: see `exspec.engine.fused.fusing.fuse_draft`.
    """

    model: str
    revision: str | None = None
    gguf_file: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    trust_remote_code: bool = False
    served_name: str | None = None
    max_model_len: int | None = None
    device_map: str = ""
    ranks: Ranks | None = None
    draft_weights: str = MODULES


def load_model(settings: ModelSettings) -> LoadedModel:
    """Load weights and tokenizer.

    Raises:
        ModelNotFoundError: if files are missing or the hub cannot provide them.
        UnsupportedModelError: if the model cannot be served exactly, for the reason given.
        InvalidRequestError: for settings that make no sense.
    """
    source = find_source(settings.model, settings.gguf_file, settings.revision)
    spread = find_spread(settings.device, settings.device_map, settings.ranks)
    dtype = _dtype_of(settings, spread.device)
    with ExitStack() as stack:
        stack.enter_context(quiet_transformers())
        if source.gguf_file is not None:
            stack.enter_context(reading_once())
        config = _load_config(source, settings)
        check_config(config)
        check_spread(config, spread)
        reading = read_tokenizer(source, "trusted" if settings.trust_remote_code else "untrusted")
        arguments = {"config": config, "dtype": dtype, **spread.loading_arguments}
        model = _load_weights(source, settings, arguments)
    with as_our_errors(settings.model):
        spread.put(model)
    loaded = wrap_model(model, settings, reading)
    return replace(
        loaded,
        facts=replace(loaded.facts, device=spread.describe(model)),
        draft_vocabulary=read_draft_vocabulary(source),
        ranks=settings.ranks,
    )


def wrap_model(
    model: PreTrainedModel, settings: ModelSettings, reading: TokenizerReading = NO_TOKENIZER
) -> LoadedModel:
    """Facts and checks for a model that is in memory already. Puts it into inference mode.

    Raises:
        UnsupportedModelError: if its attention is not one we compute exactly.
        InvalidRequestError: if `max_model_len` is more than the model is made for.
    """
    model.eval().requires_grad_(requires_grad=False)
    check_config(model.config)
    _compute_experts_plainly(model)
    attention = probe_attention(model)
    facts = facts_of(model, settings.served_name or settings.model, settings.max_model_len, reading)
    pack_linears(model)
    check_computation(model, attention, facts.max_length)
    can_fuse = settings.ranks is None and settings.draft_weights != MODULES
    fused = fuse_draft(model, attention, facts, settings.draft_weights) if can_fuse else None
    return LoadedModel(model, facts, reading.assets, attention, fused=fused)


def _compute_experts_plainly(model: PreTrainedModel) -> None:
    """The fast kernels for mixtures of experts do not know float64."""
    if model.dtype == torch.float64 and model._can_set_experts_implementation():  # noqa: SLF001
        model.set_experts_implementation("eager")


def _load_config(source: ModelSource, settings: ModelSettings) -> PretrainedConfig:
    """The configuration alone."""
    with as_our_errors(settings.model):
        return AutoConfig.from_pretrained(
            source.location,
            revision=source.revision,
            trust_remote_code=settings.trust_remote_code,
            **_gguf(source),
        )


def _load_weights(
    source: ModelSource, settings: ModelSettings, arguments: dict[str, Any]
) -> PreTrainedModel:
    """The model, on the CPU unless the arguments say where else."""
    with as_our_errors(settings.model):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source.location,
            revision=source.revision,
            trust_remote_code=settings.trust_remote_code,
            **arguments,
            output_loading_info=True,
            **_gguf(source),
        )
    model, report = loaded
    missing = sorted(report["missing_keys"])
    if missing:  # transformers would go on with random numbers in their place
        raise UnsupportedModelError(
            f"model {settings.model} lacks {len(missing)} weights, {missing[0]} for one"
        )
    _check_unexpected(sorted(report["unexpected_keys"]), settings.model, model.config)
    return model


def _check_unexpected(names: list[str], model: str, config: PretrainedConfig) -> None:
    """Weights nobody asked for: whole layers mean that the configuration is wrong."""
    if not names:
        return
    num_layers = getattr(config.get_text_config(), "num_hidden_layers", None)
    for name in names:
        layer = _LAYER_NAME.search(name)
        if layer and num_layers is not None and int(layer[1]) >= num_layers:
            raise UnsupportedModelError(
                f"model {model} has more layers than the {num_layers} of its configuration: {name}"
            )
    _log.warning("weights_unused model=%s number=%d names=%s", model, len(names), names[:4])


def _gguf(source: ModelSource) -> dict[str, Any]:
    """The argument that is only allowed when it has a value."""
    return {} if source.gguf_file is None else {"gguf_file": source.gguf_file}


@contextmanager
def as_our_errors(model: str) -> Iterator[None]:
    """transformers' errors in our terms: files or hub (OSError), or a model it cannot build."""
    try:
        yield
    except OSError as error:
        raise ModelNotFoundError(
            f"model {model} cannot be loaded: {_first_lines(error)}"
        ) from error
    except _UNLOADABLE as error:
        raise UnsupportedModelError(
            f"model {model} cannot be loaded: {_first_lines(error)}"
        ) from error


def _first_lines(error: Exception) -> str:
    """The start of a long message."""
    return " ".join(str(error).split())[:400]


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars and no advice on stderr while a model loads."""
    verbosity = hf_logging.get_verbosity()
    had_bars = hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"(transformers|huggingface_hub|torch)\b.*")
            yield
    finally:
        hf_logging.set_verbosity(verbosity)
        if had_bars:
            hf_logging.enable_progress_bar()


def _dtype_of(settings: ModelSettings, device: torch.device) -> torch.dtype | str:
    """A dtype, or "auto" for the checkpoint's own."""
    if settings.dtype == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    if settings.dtype not in _DTYPES:
        raise InvalidRequestError(
            f"unknown dtype {settings.dtype!r}, expected auto or one of {', '.join(_DTYPES)}",
            field="dtype",
        )
    return _DTYPES[settings.dtype]
