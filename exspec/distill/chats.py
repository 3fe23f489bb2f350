"""A tokenizer with its chat template: text in, token ids out, and where a user's turn begins."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from exspec.core.errors import UnsupportedModelError
from exspec.engine.sources import ModelSource

_MARK = "⟪user⟫"
"""Stands for the user's text while the template is cut in two."""


class Chats:
    """Renders conversations of one user turn. Raises `UnsupportedModelError` without tokenizer."""

    def __init__(self, source: ModelSource) -> None:
        try:
            self.tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
                source.location, gguf_file=source.gguf_file, revision=source.revision
            )
        except Exception as error:  # broken files bring any kind
            raise UnsupportedModelError(
                f"the target {source.location} has no tokenizer that can be read, so it can make "
                f"no text: {str(error)[:200]}"
            ) from error
        self.has_template = bool(getattr(self.tokenizer, "chat_template", None))

    def turn_parts(self) -> tuple[str, str]:
        """What the template puts before and after a user's text, up to where the answer begins.

        Raises:
            UnsupportedModelError: there is no template, or it does not show the user's text.
        """
        if not self.has_template:
            raise UnsupportedModelError(
                "the target's tokenizer has no chat template, so no prompts can be sampled from "
                "it; give some with --prompts FILE (they are then used as plain text)"
            )
        before, mark, after = self._rendered(_MARK).partition(_MARK)
        if not mark:
            raise UnsupportedModelError(
                "the target's chat template leaves out the user's text, or changes it"
            )
        return before, after

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of text that says all there is to say: nothing is added, special tokens count.

        Text of one user turn goes through `prompt` instead.
        """
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, tokens: Sequence[int]) -> str:
        """The text without special tokens."""
        text = self.tokenizer.decode(list(tokens), skip_special_tokens=True)
        assert isinstance(text, str)
        return text

    def prompt(self, user_text: str) -> tuple[int, ...]:
        """The whole prompt of a user's turn; the plain text where there is no template."""
        if not self.has_template:
            return tuple(self.tokenizer.encode(user_text))
        return self.encode(self._rendered(user_text))

    def _rendered(self, user_text: str) -> str:
        messages = [{"role": "user", "content": user_text}]
        try:
            text = self.tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=False
            )
        except Exception as error:  # a template is a program of somebody else's
            raise UnsupportedModelError(
                f"the target's chat template cannot show the user's turn {user_text[:60]!r}: "
                f"{str(error)[:200]}"
            ) from error
        assert isinstance(text, str)
        return text
