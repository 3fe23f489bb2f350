"""Text to token ids and back: the tokenizer a target sent, its chat template, streaming decode.

Tokenization happens once, here: drafts and targets see the same ids. No model files are needed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NoReturn, Protocol, cast

import jinja2
import jinja2.ext
import jinja2.sandbox
import tokenizers
from tokenizers.decoders import DecodeStream

from exspec.core.errors import InvalidRequestError
from exspec.core.generation import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from exspec.core.models import TokenizerAssets


class _Tokenizer(Protocol):
    """What of `tokenizers.Tokenizer` is used."""

    def encode(self, text: str, *, add_special_tokens: bool) -> Any: ...  # noqa: ANN401
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
        self._special_tokens = dict(assets.special_tokens)
        self._template = _compile(assets.chat_template) if assets.chat_template else None

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

    def open_stream(self) -> TextStream:
        """Incremental decoding of one sequence; yields no text if there is no tokenizer."""
        return TextStream(self._tokenizer)

    def _encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        encoding = self._require_tokenizer().encode(text, add_special_tokens=add_special_tokens)
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
        messages = [{"role": m.role, "content": m.content} for m in prompt.messages]
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=True, **self._special_tokens
            )
        except jinja2.TemplateError as error:
            raise InvalidRequestError(
                f"the chat template refused the messages: {error}", field="prompt"
            ) from error


class TextStream:
    """Decodes one sequence token by token; pieces and `flush` concatenate to the whole text."""

    def __init__(self, tokenizer: _Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._stream: Any = DecodeStream(skip_special_tokens=True)
        self._token_ids: list[int] = []
        self._shown = ""

    def push(self, token_id: int) -> str:
        """Text that is complete with this token; empty while a character is not."""
        if self._tokenizer is None:
            return ""
        self._token_ids.append(token_id)
        piece = self._step(self._tokenizer, token_id)
        self._shown += piece
        return piece

    def flush(self) -> str:
        """What is left at the end: an incomplete character becomes U+FFFD, as in `decode`."""
        if self._tokenizer is None:
            return ""
        piece = self._rest(self._tokenizer)
        self._shown += piece
        return piece

    def _step(self, tokenizer: _Tokenizer, token_id: int) -> str:
        if self._stream is not None:
            try:
                return self._stream.step(tokenizer, token_id) or ""
            except Exception:  # noqa: BLE001 - the library raises nothing narrower
                # It gives up on some byte sequences; decode as a whole from here on.
                self._stream = None
        rest = self._rest(tokenizer)
        return "" if rest.endswith("\ufffd") else rest

    def _rest(self, tokenizer: _Tokenizer) -> str:
        text = tokenizer.decode(self._token_ids, skip_special_tokens=True)
        return text[len(self._shown) :] if text.startswith(self._shown) else ""


def _compile(source: str) -> jinja2.Template:
    """A chat template, in the dialect of Hugging Face models, sandboxed."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    filters = cast("dict[str, object]", environment.filters)  # pyright: ignore[reportUnknownMemberType]
    filters["tojson"] = _to_json
    helpers = {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    return environment.from_string(source, globals=helpers)


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(template: str) -> str:
    return datetime.now().astimezone().strftime(template)
