"""How long to wait for a cluster, and what to say when it is not ready. Never waits itself."""

from __future__ import annotations

from exspec.core.cluster import ClusterStatus, WorkerState
from exspec.core.errors import ExspecError, UnavailableError
from exspec.core.ids import Role
from exspec.runtime.clock import Clock

DEFAULT_ADDRESS = "127.0.0.1:50050"
READY_POLL_SECONDS = 0.1
_POLL_TIMEOUT_SECONDS = 2.0


class ReadyWait:
    """One wait. Owns its deadline."""

    def __init__(self, address: str, timeout: float, clock: Clock) -> None:
        self._address = address
        self._timeout = timeout
        self._clock = clock
        self._deadline = clock() + timeout

    def poll_timeout(self) -> float:
        """Seconds that one look at the cluster may take."""
        return max(min(_POLL_TIMEOUT_SECONDS, self._deadline - self._clock()), READY_POLL_SECONDS)

    def note_error(self, error: ExspecError) -> None:
        """The cluster could not be asked; raises when time is up."""
        if self._is_late():
            raise UnavailableError(self._message(error.message)) from error

    def is_over(self, status: ClusterStatus) -> bool:
        """Whether the cluster is ready; UnavailableError says what is missing when time is up."""
        if status.is_ready:
            return True
        if self._is_late():
            raise UnavailableError(self._message(missing_of(status)))
        return False

    def _is_late(self) -> bool:
        return self._clock() >= self._deadline

    def _message(self, cause: str) -> str:
        return f"the cluster at {self._address} is not ready after {self._timeout:g} s: {cause}"


def missing_of(status: ClusterStatus) -> str:
    """Why a cluster is not ready, from its workers."""
    targets = [worker for worker in status.workers if worker.worker.role is Role.TARGET]
    if not targets:
        return "no target worker has joined"
    reasons = [
        f"{worker.worker.worker_id} is {worker.state.value}"
        + (f" ({worker.reason})" if worker.reason else "")
        for worker in targets
        if worker.state is not WorkerState.READY
    ]
    return ", ".join(reasons) or "the coordinator is still preparing"
