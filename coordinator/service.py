"""What a request goes through: check, tokenize, queue, stream, and what happens when it cannot.

Between the servicers (messages) and the driver (rounds). No messages, no scheduling.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from coordinator.admission import Admitted, admit
from coordinator.callers import Caller, ClientPlaces, Places, deadline_error
from coordinator.delivery import Mailbox
from coordinator.driver import Driver
from coordinator.pools import Pool, Pools
from coordinator.registry import WorkerRegistry
from coordinator.scheduler.events import SequenceArrived
from coordinator.scheduler.rows import Phase
from coordinator.structured import check_grammar
from exspec.core.errors import (
    ExspecError,
    QueueFullError,
    UnavailableError,
)
from exspec.core.generation import Completed, Event, Failed, GenerationRequest
from exspec.core.ids import SequenceId
from exspec.runtime.clock import Clock

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.25
LATE_TICK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """How long and how many may wait. `max_client_requests` None: as many as there are."""

    max_waiting: int
    unavailable_seconds: float
    slow_reader_seconds: float
    max_client_requests: int | None


class GenerationService:
    """Owns the life of requests. Everything runs on the event loop."""

    def __init__(
        self,
        pools: Pools,
        registry: WorkerRegistry,
        limits: ServiceLimits,
        clock: Clock,
    ) -> None:
        self._pools = pools
        self._registry = registry
        self.limits = limits
        self._clock = clock
        self._incarnation = secrets.token_hex(6)
        self._num_sequences = 0
        self._num_without_target = 0
        self._places = ClientPlaces(limits.max_client_requests)
        self._stranded_since: dict[SequenceId, float] = {}
        self._target_changed = asyncio.Event()
        self._grammar_threads = ThreadPoolExecutor(4, "grammars")

    @contextlib.contextmanager
    def places(self, caller: Caller, num: int) -> Generator[Places]:
        """Count the sequences of a call for its client; see `ClientPlaces.taken`."""
        with self._places.taken(caller.client, num) as places:
            yield places

    def caller(self, client: str, time_remaining: float | None) -> Caller:
        """Who calls; `time_remaining` in seconds, None without a deadline."""
        deadline = None if time_remaining is None else self._clock() + time_remaining
        return Caller(client, deadline)

    async def generate(
        self, request: GenerationRequest, caller: Caller
    ) -> AsyncGenerator[Event, None]:
        """Serve one request; closing the iterator frees both workers.

        Raises:
            CallerError: the request cannot be served.
            QueueFullError, UnavailableError: not now.
            DeadlineExceededError: its caller does not wait any longer.
        """
        arrived = self._clock()
        request_id = request.request_id or f"req-{secrets.token_hex(8)}"
        request = replace(request, request_id=request_id)
        try:
            pool, admitted = await self._admit(request, caller)
            events = self._stream(request, pool, admitted, caller, arrived)
            async with contextlib.aclosing(events):
                async for event in events:
                    yield event
        except ExspecError as error:
            error.request_id = error.request_id or request_id
            raise

    async def require_pool(self, name: str) -> Pool:
        """The pool of a served name, or the only one; waits a bounded time for the first target.

        Raises:
            InvalidRequestError, ModelNotFoundError: the name says none of those there are.
            UnavailableError: no target came in time.
            QueueFullError: too many wait for it already.
        """
        if not len(self._pools):
            await self._wait_for_target(lambda: len(self._pools) > 0)
        return self._pools.choose(name)

    def note_target_change(self) -> None:
        """A target joined or left."""
        self._target_changed.set()

    async def run(self) -> None:
        """Let leases expire, and give requests up that no target came for; until cancelled."""
        last_tick = self._clock()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            lateness, last_tick = self._clock() - last_tick, self._clock()
            try:
                if lateness < LATE_TICK_SECONDS:
                    # A loop that was held up has heartbeats it has not read yet.
                    self._registry.expire_leases()
                self._give_up_stranded()
            except Exception:  # a bug met once may not stop the clock for everybody
                logger.exception("service.tick_failed")

    def _give_up_stranded(self) -> None:
        """Bound the wait of sequences that no connected target could hold."""
        now = self._clock()
        stranded = {i: pool for pool in self._pools for i in pool.stranded()}
        self._stranded_since = {i: self._stranded_since.get(i, now) for i in stranded}
        for sequence_id, since in tuple(self._stranded_since.items()):
            if now - since > self.limits.unavailable_seconds:
                driver = stranded[sequence_id].driver
                ledger = driver.ledger
                message = (
                    "no target worker is left that has room for "
                    f"{ledger.max_length(sequence_id)} tokens; "
                    f"{ledger.num_generated(sequence_id)} tokens had been generated and delivered"
                )
                driver.fail(sequence_id, UnavailableError(message))

    async def _wait_for_target(self, has_come: Callable[[], bool]) -> None:
        """Until a target brought what is asked for. Who waits here waits in the queue as any other.

        Raises:
            UnavailableError: none came in time.
            QueueFullError: too many wait already.
        """
        self._require_queue(self._num_without_target)
        self._num_without_target += 1
        deadline = self._clock() + self.limits.unavailable_seconds
        try:
            while not has_come():
                self._target_changed.clear()
                async with asyncio.timeout(max(0.0, deadline - self._clock())):
                    await self._target_changed.wait()
        except TimeoutError as error:
            raise UnavailableError("no target worker has joined yet") from error
        finally:
            self._num_without_target -= 1

    async def _pool_of(self, request: GenerationRequest) -> Pool:
        """The pool that is to serve a request.

        What is resumed was served: after a restart its model may come later than others.
        """
        name = request.model
        if request.resume is not None and name and self._pools.find(name) is None:
            await self._wait_for_target(lambda: self._pools.find(name) is not None)
        return await self.require_pool(name)

    async def _admit(self, request: GenerationRequest, caller: Caller) -> tuple[Pool, Admitted]:
        seconds_left = caller.seconds_left(self._clock)
        try:
            async with asyncio.timeout(seconds_left):
                pool = await self._pool_of(request)
                self._num_sequences += 1
                sequence_id = SequenceId(f"{self._incarnation}-{self._num_sequences}")
                context_length = pool.max_length or pool.model.facts.max_length
                admitted = await asyncio.to_thread(
                    admit, request, pool.model, context_length, sequence_id
                )
                await self._check_grammar(request)
                return pool, admitted
        except TimeoutError as error:
            raise deadline_error() from error

    async def _check_grammar(self, request: GenerationRequest) -> None:
        """On threads of its own: a grammar may take seconds, and others' prompts do not wait."""
        grammar = request.sampling.structured
        if grammar is not None:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._grammar_threads, check_grammar, grammar)

    async def _stream(
        self,
        request: GenerationRequest,
        pool: Pool,
        admitted: Admitted,
        caller: Caller,
        arrived: float,
    ) -> AsyncGenerator[Event, None]:
        driver, spec, mailbox = pool.driver, admitted.spec, Mailbox()
        with self._until_deadline(spec.sequence_id, driver, caller):
            driver.ledger.open(spec, admitted.output, mailbox.put, arrived)
            try:
                if spec.sequence_id in driver.ledger:
                    self._arrive(request, driver, admitted)
                pool.accounting.note_request(len(spec.prompt_tokens))
                yield admitted.started
                while True:
                    event = await mailbox.take()
                    if isinstance(event, Failed):
                        raise event.error
                    yield event
                    if isinstance(event, Completed):
                        return
            finally:
                driver.cancel(spec.sequence_id)

    @contextlib.contextmanager
    def _until_deadline(
        self, sequence_id: SequenceId, driver: Driver, caller: Caller
    ) -> Generator[None]:
        """End the sequence when its caller stops waiting, wherever it is by then."""
        seconds_left = caller.seconds_left(self._clock)
        if seconds_left is None:
            yield
            return
        loop = asyncio.get_running_loop()
        timer = loop.call_later(seconds_left, driver.fail, sequence_id, deadline_error())
        try:
            yield
        finally:
            timer.cancel()

    def _arrive(self, request: GenerationRequest, driver: Driver, admitted: Admitted) -> None:
        """Hand a sequence to the scheduler; QueueFullError if it would wait and may not."""
        spec = admitted.spec
        driver.arrive(
            SequenceArrived(
                spec.sequence_id,
                len(spec.prompt_tokens) + len(spec.resumed_tokens),
                spec.max_length,
                request.speculation.num_speculative_tokens,
                priority=request.priority,
                group=request.group,
            )
        )
        scheduler = driver.scheduler
        if scheduler.phase_of(spec.sequence_id) is Phase.WAITING:
            self._require_queue(scheduler.num_waiting - 1)

    def _require_queue(self, num_waiting: int) -> None:
        """QueueFullError unless one more may wait."""
        if num_waiting >= self.limits.max_waiting:
            raise QueueFullError(
                f"{num_waiting} requests are waiting, {self.limits.max_waiting} may"
            )
