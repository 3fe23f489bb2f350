"""What a request goes through: check, tokenize, queue, stream, and what happens when it cannot.

Between the servicers (messages) and the driver (rounds). No messages, no scheduling.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from coordinator.ledger import SequenceSpec
from coordinator.members import ServedModel
from coordinator.pools import Pool, Pools
from coordinator.registry import WorkerRegistry
from coordinator.scheduler.events import SequenceArrived
from coordinator.scheduler.rows import Phase
from exspec.core.errors import (
    ContextLengthError,
    ExspecError,
    InvalidRequestError,
    QueueFullError,
    UnavailableError,
)
from exspec.core.generation import Completed, Event, Failed, GenerationRequest, Started
from exspec.core.ids import SequenceId
from exspec.runtime.clock import Clock

logger = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = 1.0
TICK_SECONDS = 0.25
LATE_TICK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """How long and how many may wait."""

    max_waiting: int
    unavailable_seconds: float


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
        self._limits = limits
        self._clock = clock
        self._incarnation = secrets.token_hex(6)
        self._num_sequences = 0
        self._stranded_since: dict[SequenceId, float] = {}
        self._target_changed = asyncio.Event()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        """Serve one request; closing the iterator frees both workers.

        Raises:
            InvalidRequestError, ModelNotFoundError: the request cannot be served.
            QueueFullError, UnavailableError: not now.
        """
        arrived = self._clock()
        request_id = request.request_id or f"req-{secrets.token_hex(8)}"
        try:
            pool = await self.require_pool(request.model)
            spec = await self._specify(request, pool)
            events = self._stream(request, request_id, pool, spec, arrived)
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
        """
        deadline = self._clock() + self._limits.unavailable_seconds
        while not len(self._pools):
            self._target_changed.clear()
            try:
                async with asyncio.timeout(max(0.0, deadline - self._clock())):
                    await self._target_changed.wait()
            except TimeoutError as error:
                raise UnavailableError("no target worker has joined yet") from error
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
            if now - since > self._limits.unavailable_seconds:
                driver = stranded[sequence_id].driver
                ledger = driver.ledger
                message = (
                    f"no target worker is left that holds {ledger.max_length(sequence_id)} tokens; "
                    f"{ledger.num_generated(sequence_id)} tokens had been generated and delivered"
                )
                driver.fail(sequence_id, UnavailableError(message))

    async def _stream(
        self,
        request: GenerationRequest,
        request_id: str,
        pool: Pool,
        spec: SequenceSpec,
        arrived: float,
    ) -> AsyncGenerator[Event, None]:
        driver = pool.driver
        events: asyncio.Queue[Event | Failed] = asyncio.Queue()
        driver.ledger.open(spec, pool.model.codec.open_stream(), events.put_nowait, arrived)
        try:
            driver.arrive(
                SequenceArrived(
                    spec.sequence_id,
                    len(spec.prompt_tokens),
                    spec.max_length,
                    request.speculation.num_speculative_tokens,
                    priority=request.priority,
                    group=request.group,
                )
            )
            self._require_place(spec.sequence_id, pool)
            pool.accounting.note_request(len(spec.prompt_tokens))
            yield Started(request_id, pool.name, len(spec.prompt_tokens))
            while True:
                event = await events.get()
                if isinstance(event, Failed):
                    raise event.error
                yield event
                if isinstance(event, Completed):
                    return
        finally:
            driver.cancel(spec.sequence_id)

    async def _specify(self, request: GenerationRequest, pool: Pool) -> SequenceSpec:
        model = pool.model
        prompt_tokens = await asyncio.to_thread(model.codec.encode, request.prompt)
        self.check_ids("prompt", prompt_tokens, model)
        self.check_ids("stop_token_ids", request.sampling.stop_token_ids, model)
        max_length = len(prompt_tokens) + self._max_tokens(request, len(prompt_tokens), pool)
        stop_token_ids = frozenset(request.sampling.stop_token_ids)
        if not request.sampling.ignore_eos:
            stop_token_ids |= frozenset(model.facts.stop_token_ids)
        self._num_sequences += 1
        return SequenceSpec(
            SequenceId(f"{self._incarnation}-{self._num_sequences}"),
            prompt_tokens,
            max_length,
            stop_token_ids,
            request.sampling.stop,
        )

    @staticmethod
    def _max_tokens(request: GenerationRequest, num_prompt_tokens: int, pool: Pool) -> int:
        context = pool.max_length or pool.model.facts.max_length
        room = context - num_prompt_tokens
        if room < 1:
            raise ContextLengthError(
                f"prompt has {num_prompt_tokens} tokens; the context is {context}, and at least "
                "one token must be left to generate",
                field="prompt",
            )
        wanted = request.sampling.max_tokens
        if wanted <= room:
            return wanted
        if request.has_max_tokens:
            raise ContextLengthError(
                f"max_tokens is {wanted} after a prompt of {num_prompt_tokens} tokens; the context "
                f"is {context}, so at most {room} can be generated",
                field="max_tokens",
            )
        return room

    @staticmethod
    def check_ids(field: str, token_ids: tuple[int, ...], model: ServedModel) -> None:
        """InvalidRequestError unless all ids are in the vocabulary."""
        outside = next((t for t in token_ids if t >= model.facts.vocab_size), None)
        if outside is not None:
            raise InvalidRequestError(
                f"{field}: token id {outside} is outside the vocabulary; ids go from 0 to "
                f"{model.facts.vocab_size - 1}",
                field=field,
            )

    def _require_place(self, sequence_id: SequenceId, pool: Pool) -> None:
        """QueueFullError if a sequence that just arrived waits, and too many did before it."""
        scheduler = pool.driver.scheduler
        is_waiting = scheduler.phase_of(sequence_id) is Phase.WAITING
        if is_waiting and scheduler.num_waiting > self._limits.max_waiting:
            raise QueueFullError(
                f"{scheduler.num_waiting - 1} requests are waiting, {self._limits.max_waiting} may",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
