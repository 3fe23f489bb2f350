"""One line in the log every ten seconds while there is work: how fast, and how well drafts do."""

from __future__ import annotations

import logging
from collections.abc import Callable

from exspec.core.cluster import PoolStatus, Totals
from exspec.runtime.clock import Clock

logger = logging.getLogger(__name__)

PROGRESS_SECONDS = 10.0


class ProgressLog:
    """Owns what the last line was about."""

    def __init__(self, look: Callable[[], tuple[PoolStatus, ...]], clock: Clock) -> None:
        self._look = look
        self._clock = clock
        self._last_look = clock()
        self._before: dict[str, Totals] = {}

    def write(self) -> None:
        """A line for every model that was worked for since the last look."""
        now = self._clock()
        seconds, self._last_look = now - self._last_look, now
        for pool in self._look():
            before = self._before.get(pool.name, Totals())
            self._before[pool.name] = pool.totals
            line = progress(pool, pool.totals.since(before), seconds)
            if line is not None:
                logger.info("%s", line)


def progress(pool: PoolStatus, since: Totals, seconds: float) -> str | None:
    """What to say of a model after that many seconds; None when there was nothing to do."""
    if not since.num_rounds and not pool.num_waiting and not pool.num_running:
        return None
    drafted = since.num_draft_tokens
    figures = {
        "model": pool.name,
        "acceptance_length": f"{since.acceptance_length:.2f}",
        "acceptance_rate": f"{since.num_accepted_tokens / drafted if drafted else 0.0:.3f}",
        "looked_up": f"{since.num_looked_up_tokens / drafted if drafted else 0.0:.3f}",
        "draft_tokens_per_row": f"{since.mean_draft_tokens:.2f}",
        "tokens_per_second": f"{since.num_generated_tokens / seconds if seconds > 0 else 0.0:.1f}",
        "running": pool.num_running,
        "waiting": pool.num_waiting,
    }
    return "speculation " + " ".join(f"{name}={value}" for name, value in figures.items())
