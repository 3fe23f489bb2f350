"""A model's tokenizer as data for the coordinator, and its hash. Encoding text is not done here."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from exspec.core.models import TokenizerAssets, vocabulary_sha256
from exspec.engine.sources import ModelSource

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TokenizerReading:
    """What was found: assets, vocabulary size and hash ("" when there is none), end-of-text id."""

    assets: TokenizerAssets
    size: int
    sha256: str
    eos_token_id: int | None


NO_TOKENIZER = TokenizerReading(TokenizerAssets(""), 0, "", None)


def read_tokenizer(source: ModelSource, trust: str) -> TokenizerReading:
    """The tokenizer beside the weights, or `NO_TOKENIZER`. `trust` is "trusted" or "untrusted"."""
    if not source.may_have_tokenizer:
        return NO_TOKENIZER
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            source.location,
            gguf_file=source.gguf_file,
            revision=source.revision,
            trust_remote_code=trust == "trusted",
        )
        return describe_tokenizer(tokenizer)
    except Exception as error:  # noqa: BLE001  # broken files bring any kind, bare ones too
        _log.warning("tokenizer_unreadable model=%s cause=%s", source.location, error)
        return NO_TOKENIZER


def describe_tokenizer(tokenizer: PreTrainedTokenizerBase) -> TokenizerReading:
    """The parts of a transformers tokenizer that are served."""
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        _log.warning("tokenizer_without_json served=token_ids_only")
    assets = TokenizerAssets(
        tokenizer_json=backend.to_str() if backend is not None else "",
        chat_template=_chat_template(tokenizer),
        special_tokens={
            name: str(token)
            for name, token in tokenizer.special_tokens_map.items()
            if not isinstance(token, list | dict)
        },
    )
    eos = tokenizer.eos_token_id
    return TokenizerReading(
        assets,
        len(vocabulary),
        vocabulary_sha256(vocabulary),
        eos if isinstance(eos, int) else None,
    )


def _chat_template(tokenizer: PreTrainedTokenizerBase) -> str:
    """The template text; of several named ones the default."""
    template = getattr(tokenizer, "chat_template", None) or ""
    return template.get("default", "") if isinstance(template, dict) else template
