"""Lists as they are given on a command line, turned into values. Pure."""

from __future__ import annotations

from exspec.core.errors import InvalidRequestError

LAYOUTS = ("slots", "padded")


def numbers_of(name: str, text: str) -> tuple[int, ...]:
    """Positive whole numbers with commas between them."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise InvalidRequestError(
            f"--{name.replace('_', '-')} takes positive numbers with commas, got {text!r}",
            field=name,
        )
    return numbers


def layouts_of(text: str) -> tuple[str, ...]:
    """Known layouts with commas between them."""
    layouts = tuple(part.strip() for part in text.split(","))
    for layout in layouts:
        if layout not in LAYOUTS:
            raise InvalidRequestError(
                f"unknown layout {layout!r}, expected {' or '.join(LAYOUTS)}", field="layouts"
            )
    return layouts
