"""Options that several commands share: written once, added to a command, handed to it as one value.

def _options(*, address: Annotated[str, typer.Option(…)] = "…") -> Connect: …

@app.command()
@bundled("connect", _options)
def status(connect: Connect, …): …
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

R = TypeVar("R")


def bundled(
    parameter: str, options: Callable[..., object]
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """A command with the options of `options`; what that makes of them is its `parameter`."""

    def decorate(command: Callable[..., R]) -> Callable[..., R]:
        added = inspect.signature(options, eval_str=True).parameters
        own = inspect.signature(command, eval_str=True)

        @functools.wraps(command)
        def whole(**given: Any) -> R:  # noqa: ANN401 - whatever the command takes
            answers = {name: given.pop(name) for name in added}
            return command(**{parameter: options(**answers)}, **given)

        kept = [one for name, one in own.parameters.items() if name != parameter]
        hints = get_type_hints(command, include_extras=True)
        hints.pop(parameter, None)
        whole.__annotations__ = hints | get_type_hints(options, include_extras=True)
        whole.__annotations__["return"] = hints.get("return")
        whole.__signature__ = own.replace(  # type: ignore[attr-defined]
            parameters=[*kept, *added.values()]
        )
        return whole

    return decorate
