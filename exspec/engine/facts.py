"""What a worker announces of a model in memory, read from it and from its configuration."""

from __future__ import annotations

import logging
from dataclasses import fields
from typing import Any

from transformers import PretrainedConfig, PreTrainedModel

from exspec.core.errors import InvalidRequestError, UnsupportedModelError
from exspec.core.models import GenerationDefaults, ModelFacts
from exspec.core.params import SamplingParams
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
        generation=_advice(getattr(model, "generation_config", None), name),
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


def _advice(generation: object, name: str) -> GenerationDefaults:
    """What generation_config.json says of how to choose tokens, where a request could say it too.

    Files of models that sample state it (`do_sample`), and often leave out a temperature of 1.
    """
    advice: dict[str, Any] = {}
    for field in fields(GenerationDefaults):
        stated = getattr(generation, field.name, None)
        if stated is None:
            continue
        try:
            advice[field.name] = _checked(field.name, stated)
        except (InvalidRequestError, TypeError) as error:
            _log.warning("advice_dropped model=%s field=%s why=%s", name, field.name, error)
    does_sample = getattr(generation, "do_sample", None)
    if does_sample is False:
        advice.pop("temperature", None)
    elif does_sample:
        advice.setdefault("temperature", 1.0)
    return GenerationDefaults(**advice)


def _checked(field: str, stated: object) -> int | float:
    """A number that a request may have in this field; files may say anything."""
    kinds = int if field == "top_k" else int | float
    if not isinstance(stated, kinds) or isinstance(stated, bool):
        raise TypeError(f"{stated!r} is no number for it")
    given: dict[str, Any] = {field: stated}
    SamplingParams(**given)
    return max(0, stated) if field == "top_k" else stated


def _usable(configured: object, vocab_size: int, name: str) -> tuple[int, ...]:
    """The token ids among what was configured; files may say anything."""
    listed = list(configured) if isinstance(configured, list | tuple) else [configured]
    ids = {i for i in listed if type(i) is int and 0 <= i < vocab_size}
    others = [i for i in listed if type(i) is not int or i not in ids]
    if others:
        _log.warning("stop_tokens_dropped model=%s not_token_ids=%s", name, others[:8])
    return tuple(sorted(ids))
