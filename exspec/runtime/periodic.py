"""Doing something again and again on the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)


async def repeat_every(seconds: float, act: Callable[[], None]) -> None:
    """Act now and then every so many seconds, until cancelled; a failure is logged, not final."""
    while True:
        try:
            act()
        except Exception:  # a bug met once may not end what is done for everybody
            logger.exception("periodic.failed act=%s", getattr(act, "__qualname__", act))
        await asyncio.sleep(seconds)
