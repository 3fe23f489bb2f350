"""Messages about models and tokenizers, to our values and back. Nowhere else."""

from __future__ import annotations

from exspec.core.errors import ProtocolError
from exspec.core.ids import Role
from exspec.core.models import ModelFacts, TokenizerAssets
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
