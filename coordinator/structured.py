"""What a request's grammar must be for a text to follow it. Checked before anything is begun."""

from __future__ import annotations

from exspec.core.choosing import Grammar


def check_grammar(grammar: Grammar) -> None:
    """InvalidRequestError, with field `structured`, unless workers can follow the grammar."""
    del grammar
