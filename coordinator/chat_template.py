"""Chat templates in the dialect of Hugging Face models, sandboxed: messages in, prompt text out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NoReturn, cast

import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2 import nodes
from jinja2.parser import Parser

from exspec.core.errors import InvalidRequestError
from exspec.core.generation import ChatMessage
from exspec.core.models import TokenizerAssets


class ChatTemplate:
    """One model's template. One that cannot be compiled refuses chats, not the model."""

    def __init__(self, assets: TokenizerAssets) -> None:
        self._special_tokens = dict(assets.special_tokens)
        self._problem = ""
        self._template: jinja2.Template | None = None
        try:
            self._template = _compile(assets.chat_template)
        except jinja2.TemplateError as error:
            self._problem = str(error)

    def render(self, messages: Sequence[ChatMessage]) -> str:
        """The text of a conversation, up to where the assistant's answer begins.

        Raises:
            InvalidRequestError: the template is broken, or refuses the messages.
        """
        if self._template is None:
            raise InvalidRequestError(
                f"the model's chat template cannot be used: {self._problem}", field="prompt"
            )
        variables = {
            **self._special_tokens,
            "messages": [{"role": m.role, "content": m.content} for m in messages],
            "add_generation_prompt": True,
        }
        try:
            return self._template.render(variables)
        except Exception as error:  # a template is a program of the model's author
            raise InvalidRequestError(
                f"the chat template refused the messages: {error}", field="prompt"
            ) from error


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's words for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The body as it is."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _compile(source: str) -> jinja2.Template:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    filters = cast("dict[str, object]", environment.filters)  # pyright: ignore[reportUnknownMemberType]
    filters["tojson"] = _to_json
    helpers: Mapping[str, object] = {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
    }
    return environment.from_string(source, globals=dict(helpers))


def _to_json(
    value: object,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - called by templates, as transformers has it
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(template: str) -> str:
    return datetime.now().astimezone().strftime(template)
