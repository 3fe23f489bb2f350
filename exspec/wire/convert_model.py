"""Messages about models and tokenizers, to our values and back. Nowhere else."""

from __future__ import annotations

from dataclasses import asdict

from exspec.core.errors import InvalidRequestError, ProtocolError
from exspec.core.ids import Role
from exspec.core.models import GenerationDefaults, ModelFacts, TokenizerAssets
from exspec.core.params import SamplingParams
from exspec.v1 import common_pb2, target_pb2

_ROLES = {Role.DRAFT: common_pb2.ROLE_DRAFT, Role.TARGET: common_pb2.ROLE_TARGET}
_ROLES_BACK = {value: key for key, value in _ROLES.items()}


def role_to_message(role: Role) -> common_pb2.Role:
    """Role as it travels."""
    return _ROLES[role]


def role_from_message(role: common_pb2.Role) -> Role:
    """Role of a worker; ProtocolError when it is not stated."""
    try:
        return _ROLES_BACK[role]
    except KeyError as error:
        raise ProtocolError(f"worker.role must be DRAFT or TARGET, got {role}") from error


def facts_to_message(facts: ModelFacts) -> common_pb2.ModelInfo:
    """A model as a worker announces it."""
    return common_pb2.ModelInfo(
        name=facts.name,
        architecture=facts.architecture,
        vocab_size=facts.vocab_size,
        tokenizer_size=facts.tokenizer_size,
        tokenizer_sha256=facts.tokenizer_sha256,
        max_length=facts.max_length,
        stop_token_ids=facts.stop_token_ids,
        dtype=facts.dtype,
        device=facts.device,
        num_parameters=facts.num_parameters,
        fingerprint=facts.fingerprint,
        generation=_defaults_to_message(facts.generation),
    )


def facts_from_message(message: common_pb2.ModelInfo) -> ModelFacts:
    """The model a worker announced."""
    return ModelFacts(
        name=message.name,
        architecture=message.architecture,
        vocab_size=message.vocab_size,
        tokenizer_size=message.tokenizer_size,
        tokenizer_sha256=message.tokenizer_sha256,
        max_length=message.max_length,
        stop_token_ids=tuple(message.stop_token_ids),
        dtype=message.dtype,
        device=message.device,
        num_parameters=message.num_parameters,
        fingerprint=message.fingerprint,
        generation=_defaults_from_message(message.generation),
    )


def tokenizer_to_message(assets: TokenizerAssets) -> target_pb2.GetTokenizerResponse:
    """A tokenizer as data."""
    return target_pb2.GetTokenizerResponse(
        tokenizer_json=assets.tokenizer_json,
        chat_template=assets.chat_template,
        special_tokens=dict(assets.special_tokens),
    )


def tokenizer_from_message(message: target_pb2.GetTokenizerResponse) -> TokenizerAssets:
    """A tokenizer as data."""
    return TokenizerAssets(
        message.tokenizer_json, message.chat_template, dict(message.special_tokens)
    )


def _defaults_to_message(defaults: GenerationDefaults) -> common_pb2.GenerationDefaults:
    return common_pb2.GenerationDefaults(
        temperature=defaults.temperature,
        top_k=defaults.top_k,
        top_p=defaults.top_p,
        min_p=defaults.min_p,
        typical_p=defaults.typical_p,
        repetition_penalty=defaults.repetition_penalty,
    )


def _defaults_from_message(message: common_pb2.GenerationDefaults) -> GenerationDefaults:
    has = message.HasField
    defaults = GenerationDefaults(
        temperature=message.temperature if has("temperature") else None,
        top_k=message.top_k if has("top_k") else None,
        top_p=message.top_p if has("top_p") else None,
        min_p=message.min_p if has("min_p") else None,
        typical_p=message.typical_p if has("typical_p") else None,
        repetition_penalty=message.repetition_penalty if has("repetition_penalty") else None,
    )
    try:
        SamplingParams(**asdict(defaults))
    except InvalidRequestError as error:
        raise ProtocolError(f"worker.model.generation: {error.message}") from error
    return defaults
