"""Is a cluster that is starting ready yet? Its workers first, then a first generation.

Both checks are asked again and again and never block for long, so that whoever waits can watch the
processes and the keyboard meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from exspec.client import Client
from exspec.core.cluster import ClusterStatus, WorkerState, WorkerStatus
from exspec.core.errors import CallerError, ExspecError, IncompatibleWorkerError

STATUS_SECONDS = 2.0
WARM_UP_TOKENS = 8
_ANY_TOKENS = (1, 2, 3)


class _ClosesClient:
    """A client of its own, closed at the end."""

    def __init__(self, address: str) -> None:
        self._client = Client(address, max_retries=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._client.close()


class ReadyCheck(_ClosesClient):
    """Whether every named worker has joined and is ready. Tells each change of state once."""

    def __init__(
        self, address: str, names: Sequence[str], tell: Callable[[str, str, str], None]
    ) -> None:
        super().__init__(address)
        self._names = tuple(names)
        self._tell = tell
        self._states: dict[str, WorkerState] = {}

    def is_ready(self) -> bool:
        """Look again; IncompatibleWorkerError if a worker was refused."""
        try:
            status = self._client.cluster_status(timeout=STATUS_SECONDS)
        except ExspecError:
            return False  # the coordinator's death is seen by whoever watches its process
        for worker in status.workers:
            self._note(worker)
        return status.is_ready and self._all_ready(status)

    def missing(self) -> str:
        """Which workers are not ready, for people."""
        waiting = [
            f"{name} is {self._states[name].value if name in self._states else 'loading'}"
            for name in self._names
            if self._states.get(name) is not WorkerState.READY
        ]
        return ", ".join(waiting) or "the coordinator is not ready"

    def _note(self, status: WorkerStatus) -> None:
        name = status.worker.worker_id
        if self._states.get(name) is not status.state:
            self._states[name] = status.state
            self._tell(name, status.state.value, status.worker.model.name)
        if status.state is WorkerState.REFUSED:
            raise IncompatibleWorkerError(f"{name} was refused: {status.reason}")

    def _all_ready(self, status: ClusterStatus) -> bool:
        ready = {w.worker.worker_id for w in status.workers if w.state is WorkerState.READY}
        return ready.issuperset(self._names)


class WarmUp(_ClosesClient):
    """One small generation per target, on a thread of its own. Closing the client ends it."""

    def __init__(self, address: str, num_prompts: int) -> None:
        super().__init__(address)
        self._num_prompts = num_prompts
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="warm-up", daemon=True)

    def is_done(self) -> bool:
        """Whether it has succeeded; starts it at the first look, raises its error."""
        if self._thread.ident is None:
            self._thread.start()
        if self._thread.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True

    def _run(self) -> None:
        try:
            self._warm_up()
        except Exception as error:  # noqa: BLE001 - handed to whoever waits
            self._error = error

    def _warm_up(self) -> None:
        with contextlib.suppress(CallerError):  # a model without a tokenizer takes token ids only
            self._client.tokenize("Hello")
        results = self._client.generate_batch(
            [_ANY_TOKENS] * self._num_prompts, max_tokens=WARM_UP_TOKENS, ignore_eos=True
        )
        for result in results:
            if isinstance(result, ExspecError):
                raise result
