"""Who calls, until when, and how much each client has under way. No events, no scheduling."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass

from exspec.core.errors import DeadlineExceededError, InvalidRequestError, TooManyRequestsError
from exspec.runtime.clock import Clock


@dataclass(frozen=True, slots=True)
class Caller:
    """The name of a client, and when it stops waiting for this call, on the coordinator's clock."""

    client: str = ""
    deadline: float | None = None

    def seconds_left(self, clock: Clock) -> float | None:
        """Seconds until the deadline; None without one.

        Raises:
            DeadlineExceededError: it is over.
        """
        if self.deadline is None:
            return None
        left = self.deadline - clock()
        if left <= 0:
            raise deadline_error()
        return left


def deadline_error() -> DeadlineExceededError:
    """What a request ends with that its caller does not wait for any longer."""
    return DeadlineExceededError("the caller's deadline passed before the request was done")


class Places:
    """Sequences of one call that count for its client. Changed through `ClientPlaces` only."""

    def __init__(self, counts: Counter[str], client: str, num_taken: int) -> None:
        self._counts = counts
        self._client = client
        self._num_taken = num_taken
        counts[client] += num_taken

    def release(self, num: int = 1) -> None:
        """Sequences ended."""
        self._num_taken -= num
        self._counts[self._client] -= num
        if not self._counts[self._client]:
            del self._counts[self._client]

    def release_all(self) -> None:
        """The call ended, and all of its sequences with it."""
        if self._num_taken:
            self.release(self._num_taken)


class ClientPlaces:
    """Owns how many sequences, running or waiting, each client has; `max_per_client` None: any."""

    def __init__(self, max_per_client: int | None) -> None:
        self._max_per_client = max_per_client
        self._counts = Counter[str]()

    def __len__(self) -> int:
        """Clients that have any."""
        return len(self._counts)

    @contextlib.contextmanager
    def taken(self, client: str, num: int) -> Generator[Places]:
        """Take places for the sequences of a call, until they are released or the block ends.

        Raises:
            InvalidRequestError: there can never be so many.
            TooManyRequestsError: not now.
        """
        bound = self._max_per_client
        if bound is not None and num > bound:
            raise InvalidRequestError(
                f"prompts holds {num} prompts; one client may have {bound} under way here",
                field="prompts",
            )
        if bound is not None and self._counts[client] + num > bound:
            raise TooManyRequestsError(
                f"client {client} has {self._counts[client]} generations under way and asks for "
                f"{num} more; it may have {bound}"
            )
        places = Places(self._counts, client, num)
        try:
            yield places
        finally:
            places.release_all()
