"""Text to token ids and back: the tokenizer a target sent, its chat template, streaming decode.

Tokenization happens once, here: drafts and targets see the same ids. No model files are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

import tokenizers
from tokenizers.decoders import DecodeStream

from coordinator.chat_template import ChatTemplate
from exspec.core.errors import InvalidRequestError
from exspec.core.generation import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from exspec.core.models import TokenizerAssets


class _Tokenizer(Protocol):
    """What of `tokenizers.Tokenizer` is used."""

    def encode_batch_fast(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[Any]: ...
    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str: ...


class TextCodec:
    """One model's tokenizer and chat template."""

    def __init__(self, assets: TokenizerAssets) -> None:
        self._tokenizer: _Tokenizer | None = None
        if assets.tokenizer_json:
            tokenizer = cast("Any", tokenizers.Tokenizer).from_str(assets.tokenizer_json)
            tokenizer.no_padding()
            tokenizer.no_truncation()
            self._tokenizer = cast("_Tokenizer", tokenizer)
        self._template = ChatTemplate(assets) if assets.chat_template else None

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """The prompt's token ids.

        Raises:
            InvalidRequestError: no tokenizer, no chat template, or the template's own refusal.
        """
        match prompt:
            case TokenPrompt(token_ids):
                return token_ids
            case TextPrompt(text):
                return self._encode(text, add_special_tokens=True)
            case ChatPrompt():
                # The template writes the special tokens itself.
                return self._encode(self.render(prompt), add_special_tokens=False)

    def render(self, prompt: Prompt) -> str:
        """The text that is tokenized; empty for token ids."""
        match prompt:
            case TokenPrompt():
                return ""
            case TextPrompt(text):
                return text
            case ChatPrompt():
                return self._apply_template(prompt)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        return self._require_tokenizer().decode(list(token_ids), skip_special_tokens=True)

    @property
    def has_tokenizer(self) -> bool:
        """Whether there is any text, or token ids only."""
        return self._tokenizer is not None

    def encode_piece(self, text: str) -> tuple[int, ...]:
        """Token ids of a piece of text, as it would be within a longer one; may be empty.

        Raises:
            InvalidRequestError: no tokenizer.
        """
        (encoding,) = self._require_tokenizer().encode_batch_fast([text], add_special_tokens=False)
        return tuple(cast("list[int]", encoding.ids))

    def open_stream(self) -> TextStream:
        """Incremental decoding of one sequence; yields no text if there is no tokenizer."""
        return TextStream(self._tokenizer)

    def _encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        # Unlike `encode`, the batch call lets other threads run meanwhile.
        (encoding,) = self._require_tokenizer().encode_batch_fast(
            [text], add_special_tokens=add_special_tokens
        )
        token_ids = tuple(cast("list[int]", encoding.ids))
        if not token_ids:
            raise InvalidRequestError("prompt has no tokens", field="prompt")
        return token_ids

    def _require_tokenizer(self) -> _Tokenizer:
        if self._tokenizer is None:
            raise InvalidRequestError(
                "the model has no tokenizer: pass token ids instead of text", field="prompt"
            )
        return self._tokenizer

    def _apply_template(self, prompt: ChatPrompt) -> str:
        if self._template is None:
            raise InvalidRequestError(
                "the model has no chat template: pass text or token ids", field="prompt"
            )
        return self._template.render(prompt.messages)


class TextStream:
    """Decodes one sequence token by token; pieces and `flush` concatenate to the whole text."""

    def __init__(self, tokenizer: _Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._stream: Any = DecodeStream(skip_special_tokens=True)
        self._token_ids: list[int] = []
        self._num_shown = 0
        """Leading tokens whose text was given out."""
        self._shown = ""

    def push(self, token_id: int) -> str:
        """Text that is complete with this token; empty while a character is not."""
        if self._tokenizer is None:
            return ""
        self._token_ids.append(token_id)
        piece = self._step(self._tokenizer, token_id)
        if piece:
            self._shown += piece
            self._num_shown = len(self._token_ids)
        return piece

    def flush(self) -> str:
        """What is left at the end: an incomplete character becomes U+FFFD, as in `decode`."""
        if self._tokenizer is None:
            return ""
        text = self._decode(self._tokenizer, self._token_ids)
        if text.startswith(self._shown):
            return text[len(self._shown) :]
        # Decoded as a whole, a broken run of bytes takes the good ones before it down with it.
        return self._decode(self._tokenizer, self._token_ids[self._num_shown :])

    def _step(self, tokenizer: _Tokenizer, token_id: int) -> str:
        try:
            return self._stream.step(tokenizer, token_id) or ""
        except Exception:  # noqa: BLE001 - the library raises nothing narrower
            # It gives up for good on some byte sequences: show what is there and start anew.
            self._stream = DecodeStream(ids=[token_id], skip_special_tokens=True)
            return self._decode(tokenizer, self._token_ids[self._num_shown :])

    @staticmethod
    def _decode(tokenizer: _Tokenizer, token_ids: Sequence[int]) -> str:
        return tokenizer.decode(list(token_ids), skip_special_tokens=True)
