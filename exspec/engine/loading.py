"""Loads a model for serving: settings in, a model with its facts and tokenizer assets out.

Also the one place that decides dtype, device and stop tokens. Running the model is
`exspec.engine.model_runner`.
"""

from __future__ import annotations

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
from exspec.core.models import ModelFacts, TokenizerAssets
from exspec.engine.fingerprint import fingerprint_of
from exspec.engine.gguf_reading import reading_once
from exspec.engine.kv.hf_adapter import AttentionShape, probe_attention
from exspec.engine.packing import pack_linears
from exspec.engine.sources import ModelSource, find_source, read_draft_vocabulary
from exspec.engine.support import check_config, max_length_of
from exspec.engine.tokenizer_assets import NO_TOKENIZER, TokenizerReading, read_tokenizer

_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}


_UNLOADABLE = (
    ArithmeticError,
    AttributeError,
    ImportError,
    LookupError,
    RuntimeError,
    SafetensorError,
    StrictDataclassError,
    TypeError,
    ValueError,
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
    included) to what the model is made for.
    """

    model: str
    revision: str | None = None
    gguf_file: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    trust_remote_code: bool = False
    served_name: str | None = None
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run, what is known of it, and its tokenizer as data.

    `draft_vocabulary` holds the token ids worth drafting over, if the model came with a list.
    On a CPU in float32 the model's linear layers are packed (`exspec.engine.packing`).
    """

    model: PreTrainedModel
    facts: ModelFacts
    tokenizer: TokenizerAssets
    attention: AttentionShape
    draft_vocabulary: tuple[int, ...] = ()


def load_model(settings: ModelSettings) -> LoadedModel:
    """Load weights and tokenizer.

    Raises:
        ModelNotFoundError: if files are missing or the hub cannot provide them.
        UnsupportedModelError: if the model cannot be served exactly, for the reason given.
        InvalidRequestError: for settings that make no sense.
    """
    source = find_source(settings.model, settings.gguf_file, settings.revision)
    device = _device_of(settings)
    dtype = _dtype_of(settings, device)
    with ExitStack() as stack:
        stack.enter_context(_quiet_transformers())
        if source.gguf_file is not None:
            stack.enter_context(reading_once())
        config = _load_config(source, settings)
        check_config(config)
        reading = read_tokenizer(source, "trusted" if settings.trust_remote_code else "untrusted")
        model = _load_weights(source, settings, config, dtype)
    model.to(device)  # pyright: ignore[reportArgumentType]  # a wrapper hides Module.to's types
    loaded = wrap_model(model, settings, reading)
    return replace(loaded, draft_vocabulary=read_draft_vocabulary(source))


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
    attention = probe_attention(model)
    facts = ModelFacts(
        name=settings.served_name or settings.model,
        architecture=type(model).__name__,
        vocab_size=_vocab_size(model),
        tokenizer_size=reading.size,
        tokenizer_sha256=reading.sha256,
        max_length=_max_length(settings, model.config),
        stop_token_ids=_stop_token_ids(model, reading),
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(model.device),
        num_parameters=sum(weights.numel() for weights in model.parameters()),
        fingerprint=fingerprint_of(model),
    )
    pack_linears(model)
    return LoadedModel(model, facts, reading.assets, attention)


def _load_config(source: ModelSource, settings: ModelSettings) -> PretrainedConfig:
    """The configuration alone."""
    with _as_our_errors(settings.model):
        return AutoConfig.from_pretrained(
            source.location,
            revision=source.revision,
            trust_remote_code=settings.trust_remote_code,
            **_gguf(source),
        )


def _load_weights(
    source: ModelSource, settings: ModelSettings, config: PretrainedConfig, dtype: torch.dtype | str
) -> PreTrainedModel:
    """The model on the CPU."""
    with _as_our_errors(settings.model):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source.location,
            config=config,
            dtype=dtype,
            revision=source.revision,
            trust_remote_code=settings.trust_remote_code,
            output_loading_info=True,
            **_gguf(source),
        )
    model, report = loaded
    missing = sorted(report["missing_keys"])
    if missing:  # transformers would go on with random numbers in their place
        raise UnsupportedModelError(
            f"model {settings.model} lacks {len(missing)} weights, {missing[0]} for one"
        )
    return model


def _gguf(source: ModelSource) -> dict[str, Any]:
    """The argument that is only allowed when it has a value."""
    return {} if source.gguf_file is None else {"gguf_file": source.gguf_file}


@contextmanager
def _as_our_errors(model: str) -> Iterator[None]:
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
def _quiet_transformers() -> Iterator[None]:
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


def _device_of(settings: ModelSettings) -> torch.device:
    """The device asked for, or the best there is."""
    if settings.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.device(settings.device)
    except RuntimeError as error:
        raise InvalidRequestError(f"unknown device {settings.device!r}", field="device") from error


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


def _vocab_size(model: PreTrainedModel) -> int:
    """Rows of the output head."""
    head = model.get_output_embeddings()
    return int(head.weight.shape[0]) if head is not None else int(model.config.vocab_size)


def _max_length(settings: ModelSettings, config: PretrainedConfig) -> int:
    """The length served."""
    longest = max_length_of(config)
    wanted = settings.max_model_len or longest
    if not 1 <= wanted <= longest:
        raise InvalidRequestError(
            f"max_model_len {wanted} is not between 1 and the model's {longest}",
            field="max_model_len",
        )
    return wanted


def _stop_token_ids(model: PreTrainedModel, reading: TokenizerReading) -> tuple[int, ...]:
    """The ids that end a generation, as its makers configured; the tokenizer's as a last resort."""
    generation = getattr(model, "generation_config", None)
    for ids in (
        getattr(generation, "eos_token_id", None),
        getattr(model.config, "eos_token_id", None),
        reading.eos_token_id,
    ):
        if ids is not None:
            return tuple(sorted({ids} if isinstance(ids, int) else set(ids)))
    return ()
