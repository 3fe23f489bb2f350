"""How long the driver waits for drafts, taken out of the hands of the clock."""

from __future__ import annotations

from collections.abc import Callable

from coordinator.outside import CallLater


class Patience:
    """The driver's `call_later`. Held, it runs out when told: no clock decides what is late."""

    def __init__(self, call_later: CallLater) -> None:
        self._call_later = call_later
        self._is_held = False
        self._waiting: list[Callable[[], None]] = []

    def __call__(self, seconds: float, call: Callable[[], None]) -> object:
        if not self._is_held:
            return self._call_later(seconds, call)
        self._waiting.append(call)
        return None

    def hold(self) -> None:
        """From now on whoever waits waits until told otherwise."""
        self._is_held = True

    def run_out(self) -> None:
        """What is still waited for is overdue."""
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()
