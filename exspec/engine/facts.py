"""What a worker announces of a model in memory, read from it and from its configuration."""

from __future__ import annotations

import logging

from transformers import PretrainedConfig, PreTrainedModel

from exspec.core.errors import InvalidRequestError, UnsupportedModelError
from exspec.core.models import ModelFacts
from exspec.engine.fingerprint import fingerprint_of
from exspec.engine.loaded import num_embeddings_of
from exspec.engine.support import max_length_of
from exspec.engine.tokenizer_assets import TokenizerReading

_log = logging.getLogger(__name__)


def facts_of(
    model: PreTrainedModel, name: str, max_model_len: int | None, reading: TokenizerReading
) -> ModelFacts:
    """The facts of a model that is served as `name`.

    Raises:
        UnsupportedModelError: if it can choose tokens it cannot be fed.
        InvalidRequestError: if `max_model_len` is more than the model is made for.
    """
    vocab_size = _vocab_size(model)
    return ModelFacts(
        name=name,
        architecture=type(model).__name__,
        vocab_size=vocab_size,
        tokenizer_size=reading.size,
        tokenizer_sha256=reading.sha256,
        max_length=_max_length(max_model_len, model.config),
        stop_token_ids=_usable(_stop_token_ids(model, reading), vocab_size, name),
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(model.device),
        num_parameters=sum(weights.numel() for weights in model.parameters()),
        fingerprint=fingerprint_of(model),
    )


def _vocab_size(model: PreTrainedModel) -> int:
    """Rows of the output head."""
    head = model.get_output_embeddings()
    size = int(head.weight.shape[0]) if head is not None else int(model.config.vocab_size)
    num_embeddings = num_embeddings_of(model)
    if size > num_embeddings:
        raise UnsupportedModelError(
            f"{type(model).__name__} chooses among {size} token ids and can be fed only "
            f"{num_embeddings} of them"
        )
    return size


def _max_length(max_model_len: int | None, config: PretrainedConfig) -> int:
    """The length served."""
    longest = max_length_of(config)
    wanted = longest if max_model_len is None else max_model_len
    if not 1 <= wanted <= longest:
        raise InvalidRequestError(
            f"max_model_len {wanted} is not between 1 and the model's {longest}",
            field="max_model_len",
        )
    return wanted


def _stop_token_ids(model: PreTrainedModel, reading: TokenizerReading) -> object:
    """What ends a generation, as its makers configured it; the tokenizer's as a last resort."""
    generation = getattr(model, "generation_config", None)
    for ids in (
        getattr(generation, "eos_token_id", None),
        getattr(model.config, "eos_token_id", None),
        reading.eos_token_id,
    ):
        if ids is not None:
            return ids
    return ()


def _usable(configured: object, vocab_size: int, name: str) -> tuple[int, ...]:
    """The token ids among what was configured; files may say anything."""
    listed = list(configured) if isinstance(configured, list | tuple) else [configured]
    ids = {i for i in listed if type(i) is int and 0 <= i < vocab_size}
    others = [i for i in listed if type(i) is not int or i not in ids]
    if others:
        _log.warning("stop_tokens_dropped model=%s not_token_ids=%s", name, others[:8])
    return tuple(sorted(ids))
