"""What may happen to messages on their way, drawn from a seed. Streams and heartbeats alike."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from random import Random

from tests.chaos.message_proxy import BrokenStreamError, Direction

LATE_SECONDS = 0.03
"""Long enough to be overtaken."""


@dataclass(frozen=True, slots=True)
class Odds:
    """How likely each fault is for one message; what is left arrives once, at once."""

    drop: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0
    """A delayed message is overtaken by those that follow: this is how they are reordered."""
    cut: float = 0.0
    """The stream ends."""


ODDS = {
    "duplicates": Odds(duplicate=0.08),
    "reordered": Odds(delay=0.4),
    "dropped": Odds(drop=0.04),
    "cut": Odds(cut=0.03),
    "everything": Odds(drop=0.015, duplicate=0.03, delay=0.1, cut=0.02),
}


class Faults:
    """A tap that draws what becomes of each message. Owns the counts of what it did."""

    def __init__(self, odds: Odds, random: Random) -> None:
        self._kinds = (*asdict(odds), "none")
        chances = asdict(odds).values()
        self._weights = (*chances, 1 - sum(chances))
        self._random = random
        self.counts = Counter[str]()

    async def __call__(
        self, method: str, direction: Direction, message: bytes
    ) -> tuple[float, ...]:
        """When the copies of a message arrive."""
        (kind,) = self._random.choices(self._kinds, self._weights)
        self.counts[kind] += 1
        match kind:
            case "drop":
                return ()
            case "duplicate":
                return (0.0, self._random.choice([0.0, LATE_SECONDS]))
            case "delay":
                return (LATE_SECONDS * self._random.random(),)
            case "cut":
                raise BrokenStreamError
            case _:
                return (0.0,)
