"""From a grammar to llguidance's matcher: what the coordinator's check and workers do alike.

llguidance is an extra of the package, so it is imported when the first grammar comes.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar

from exspec.core.choosing import Grammar, GrammarKind
from exspec.core.errors import InvalidRequestError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

STACK_BYTES = 256 << 20
"""Address space, not memory. llguidance calls itself once per level of nesting, and a chain of
rules is nesting, too: the deepest one that a request has room for was seen to need up to 32 MiB,
several times what threads usually have."""
_MAX_REASON_LENGTH = 400
_REASON = re.compile(r"^error: (.*)", re.MULTILINE)
_NO_TOKEN = "NoExtension"
_ATTRIBUTES = re.compile(
    r"""^[ \t]*[?!]?\w+(?:::\w+)?[ \t]*\[((?:[^]"/]|"(?:\\.|[^"\\])*"|/(?:\\.|[^/\\])*/)*)\]""",
    re.MULTILINE,
)
"""The attributes of a rule."""
_UNSERVED_ATTRIBUTE = re.compile(r"\b(stop|stop_capture|temperature)\s*=")
_SPECIAL = ("unknown special token", "special tokens", "Token range")
_stack_lock = threading.Lock()
_Result = TypeVar("_Result")


def is_available() -> bool:
    """Whether llguidance is installed."""
    return find_spec("llguidance") is not None


def check_available(where: str) -> None:
    """InvalidRequestError, with what to install `where`, if llguidance is missing."""
    if not is_available():
        raise refusal(
            f"structured output needs llguidance, which is not installed {where}: "
            "pip install 'exspec[structured]'"
        )


def compile_grammar(
    grammar: Grammar, tokenizer: LLTokenizer, stack_bytes: int = STACK_BYTES
) -> LLMatcher:
    """A matcher at the beginning of the text. It reports its later errors by `is_error`.

    Raises:
        InvalidRequestError: it is no grammar of its kind, or needs what llguidance does not have.
    """
    from llguidance import LLMatcher, LLParserLimits

    source = _source(grammar)
    # The bounds of its work are llguidance's own; messages are kept free of requests' text.
    limits = LLParserLimits(verbose_errors=False)
    matcher = on_stack_of(
        stack_bytes, lambda: LLMatcher(tokenizer, source, log_level=0, limits=limits)
    )
    if matcher.is_error():
        name = _NAMES[grammar.kind]
        reason = reason_of(matcher.get_error())
        raise refusal(f"structured is not a {name} that can be served: {reason}")
    return matcher


def refusal(message: str) -> InvalidRequestError:
    """The error that says why a grammar is not served."""
    return InvalidRequestError(message, field="structured")


def reason_of(error: str) -> str:
    """The part of llguidance's message that says why, in one line of bounded length."""
    if error.startswith(_NO_TOKEN):
        return "no token can follow"
    if any(words in error for words in _SPECIAL):
        return "it names special tokens, which are no text"
    found = _REASON.search(error)
    text = " ".join((found[1] if found else error.replace("<non-verbose/>", "")).split())
    return text if len(text) <= _MAX_REASON_LENGTH else f"{text[: _MAX_REASON_LENGTH - 1]}…"


def on_stack_of(num_bytes: int, function: Callable[[], _Result]) -> _Result:
    """Call it on a thread with so much stack, and wait."""
    results = list[_Result]()
    errors = list[BaseException]()

    def call() -> None:
        try:
            results.append(function())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            errors.append(error)

    with _stack_lock:
        former = threading.stack_size(num_bytes)
        try:
            thread = threading.Thread(target=call, name="grammar")
            thread.start()
        finally:
            threading.stack_size(former)
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


_NAMES = {
    GrammarKind.JSON_SCHEMA: "JSON schema",
    GrammarKind.REGEX: "regular expression",
    GrammarKind.LARK: "Lark grammar",
}


def _source(grammar: Grammar) -> str:
    """The grammar as llguidance wants it."""
    from llguidance import LLMatcher

    make = {
        GrammarKind.JSON_SCHEMA: LLMatcher.grammar_from_json_schema,
        GrammarKind.REGEX: LLMatcher.grammar_from_regex,
        GrammarKind.LARK: LLMatcher.grammar_from_lark,
    }[grammar.kind]
    if grammar.kind is GrammarKind.JSON_SCHEMA:
        _check_json(grammar.text)
    if grammar.kind is GrammarKind.LARK:
        _check_lark(grammar.text)
    try:
        return make(grammar.text)
    except ValueError as error:  # a lone surrogate, too
        raise refusal(f"structured cannot be read: {reason_of(str(error))}") from error


def _check_json(text: str) -> None:
    """What is wrong with the text is said with places in it, not in what it is wrapped in."""
    try:
        json.loads(text)
    except RecursionError as error:
        raise refusal("structured is nested too deeply for a JSON schema") from error
    except ValueError as error:
        raise refusal(f"structured is not JSON: {reason_of(str(error))}") from error


def _check_lark(text: str) -> None:
    """No JSON of llguidance's own; `stop` hides text, and temperature is the request's to set."""
    if text.lstrip().startswith("{"):
        raise refusal("structured is not a Lark grammar: it begins with {")
    for attributes in _ATTRIBUTES.finditer(text):
        found = _UNSERVED_ATTRIBUTE.search(attributes[1])
        if found:
            raise refusal(
                f"structured has a rule with the attribute {found[1]}, which is not served"
            )
