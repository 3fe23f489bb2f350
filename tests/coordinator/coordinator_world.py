"""A whole cluster in one event loop: the real coordinator and the real worker services over
loopback gRPC, with toy models behind them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TextIO

import grpc.aio
from bell import Bell
from fake_worker import NO_TOKENIZER, FakeWorker
from patience import Patience
from toy import VOCAB, ToyRunner, continuation, draft_language, facts, reported, target_language

from coordinator.driver import Driver
from coordinator.members import ServedModel
from coordinator.outside import Timing
from coordinator.parts import SERVICE_NAMES, Parts, build
from coordinator.pools import Pool
from coordinator.settings import CoordinatorSettings
from coordinator.traces import Traces
from exspec.core.choosing import ChoiceRules
from exspec.core.cluster import WorkerState
from exspec.core.errors import ExspecError
from exspec.core.generation import Completed, Delta, GenerationRequest, Started, TokenPrompt
from exspec.core.ids import Role, WorkerId
from exspec.core.models import ModelFacts, TokenizerAssets
from exspec.core.params import SamplingParams, SpeculationParams
from exspec.core.rounds import DraftBatch, VerifyBatch
from exspec.runtime.clock import monotonic
from exspec.v1 import generation_pb2_grpc, registry_pb2_grpc
from exspec.wire import convert_generation as convert
from exspec.wire.channel import open_aio_channel
from exspec.wire.convert_cluster import worker_to_message
from exspec.wire.server import RpcServer
from exspec.wire.status import from_call


@dataclass(frozen=True)
class OneTrace:
    """Records the only pool's trace in a stream."""

    stream: TextIO

    def open(self, model: str) -> TextIO:
        return self.stream


@dataclass
class Answer:
    """What a client saw of one request, up to its end or error."""

    started: Started | None = None
    deltas: list[Delta] = field(default_factory=list)
    completed: Completed | None = None
    error: ExspecError | None = None

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(token for delta in self.deltas for token in delta.token_ids)

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)


class World:
    """The coordinator, the workers started so far, and a client."""

    def __init__(self, parts: Parts, address: str, channel: grpc.aio.Channel, bell: Bell) -> None:
        self.parts = parts
        self.patience = Patience(asyncio.get_running_loop().call_later)
        self.sent: list[tuple[str, DraftBatch | VerifyBatch]] = []
        """Every batch with the name of its worker, in the order they were sent."""
        self._record_sending(parts.registry.send)
        parts.pools.make = self._watched(parts.pools.make)
        self.address = address
        self.bell = bell
        self.stub = generation_pb2_grpc.GenerationServiceStub(channel)
        self.registry = registry_pb2_grpc.RegistryServiceStub(channel)
        self.admin = registry_pb2_grpc.AdminServiceStub(channel)
        self.workers: list[FakeWorker] = []

    @property
    def pool(self) -> Pool:
        """The only pool."""
        (pool,) = self.parts.pools
        return pool

    @property
    def driver(self) -> Driver:
        """That of the only pool."""
        return self.pool.driver

    # Workers

    async def target(self, name: str = "target", **changes: Any) -> FakeWorker:
        """A target that has joined."""
        worker = self.new(Role.TARGET, name, **changes)
        await self.start(worker)
        await self.until_state(worker, WorkerState.READY)
        return worker

    async def draft(self, name: str = "draft", **changes: Any) -> FakeWorker:
        """A draft worker that has joined."""
        worker = self.new(Role.DRAFT, name, **changes)
        await self.start(worker)
        await self.until_state(worker, WorkerState.READY)
        return worker

    def new(
        self,
        role: Role,
        name: str,
        *,
        language: Callable[[Sequence[int]], int] | None = None,
        num_slots: int = 8,
        capacity: int = 256,
        vocab_size: int = VOCAB,
        model: ModelFacts | None = None,
        tokenizer: TokenizerAssets = NO_TOKENIZER,
        kv_layout: str = "slots",
        num_ahead: int = 0,
        draft_for: str = "",
    ) -> FakeWorker:
        """A worker that was not started."""
        default = target_language if role is Role.TARGET else draft_language
        runner = ToyRunner(
            language or default, num_slots=num_slots, capacity=capacity, vocab_size=vocab_size
        )
        worker = FakeWorker(role, name, runner, self.bell, num_ahead)
        worker.kv_layout = kv_layout
        worker.draft_for = draft_for
        worker.model = model or worker.model
        worker.tokenizer = tokenizer
        self.workers.append(worker)
        return worker

    async def start(self, worker: FakeWorker) -> asyncio.Task[None]:
        """Listen and register."""
        await worker.listen()
        return worker.register(self.address)

    async def register(self, worker: FakeWorker) -> None:
        """Register once, without heartbeats."""
        from exspec.v1 import registry_pb2

        request = registry_pb2.RegisterRequest(worker=worker_to_message(worker.info))
        try:
            await self.registry.Register(request)
        except grpc.aio.AioRpcError as error:
            raise from_call(error) from error

    def state(self, worker: FakeWorker) -> WorkerState | None:
        """As status shows it."""
        for status in self.parts.view.status().workers:
            if status.worker.incarnation == worker.incarnation:
                return status.state
        return None

    def reason(self, worker: FakeWorker) -> str:
        """As status shows it."""
        for status in self.parts.view.status().workers:
            if status.worker.incarnation == worker.incarnation:
                return status.reason
        return ""

    async def until_state(self, worker: FakeWorker, state: WorkerState) -> None:
        """Wait for it."""
        await self.bell.until(lambda: self.state(worker) is state)

    async def eventually(self, predicate: Callable[[], object], seconds: float = 60.0) -> None:
        """Wait for what nothing rings for."""
        async with asyncio.timeout(seconds):
            while not predicate():  # noqa: ASYNC110 - see above
                await asyncio.sleep(0.01)

    async def forget(self, worker: FakeWorker) -> None:
        """Kill it, and leave it out of the final accounts."""
        self.workers.remove(worker)
        await worker.kill()

    def in_flight(self, worker: FakeWorker) -> int:
        """Batches sent to a worker and not answered."""
        flights = [
            flight for pool in self.parts.pools for flight in pool.driver._in_flight.values()
        ]
        return sum(flight.worker_id == worker.name for flight in flights)

    def _watched(self, make: Callable[[ServedModel], Pool]) -> Callable[[ServedModel], Pool]:
        """Pools whose drivers have the world's patience and ring its bell."""

        def making(model: ServedModel) -> Pool:
            pool = make(model)
            driver, handle = pool.driver, pool.driver._handle
            driver._timing = Timing(monotonic, self.patience)
            driver._handle = lambda event: (handle(event), self.bell.ring())  # type: ignore[method-assign]
            return pool

        return making

    def _record_sending(self, send: Callable[[WorkerId, DraftBatch | VerifyBatch], None]) -> None:
        def sending(worker_id: WorkerId, batch: DraftBatch | VerifyBatch) -> None:
            self.sent.append((worker_id, batch))
            send(worker_id, batch)

        self.parts.registry.send = sending  # type: ignore[method-assign]

    # Requests

    async def generate(
        self, prompt: Sequence[int] = (11, 0, 2), max_tokens: int = 20, k: int | None = None
    ) -> Answer:
        """One request, to its end."""
        return await self.ask(request(prompt, max_tokens, k))

    async def ask(
        self, asked: GenerationRequest, on_event: Callable[[], None] = lambda: None
    ) -> Answer:
        """One request, to its end; errors are part of the answer."""
        answer = Answer()
        call = self.stub.Generate(convert.request_to_message(asked))
        try:
            async for message in call:
                event = convert.event_from_message(message)
                if isinstance(event, Started):
                    answer.started = event
                elif isinstance(event, Delta):
                    answer.deltas.append(event)
                else:
                    answer.completed = event
                on_event()
        except grpc.aio.AioRpcError as error:
            answer.error = from_call(error)
        finally:
            call.cancel()  # the library leaves a call to the collector if it is not sent yet
        return answer

    # The end

    async def settle(self) -> None:
        """Nothing may be left of any request, on the coordinator or on a worker that lives."""
        try:
            await self.bell.until(self._is_clean)
        except TimeoutError as error:
            raise AssertionError(f"something is left: {self._left_overs()}") from error
        for worker in self.workers:
            assert worker.runner.violations == []

    def _left_overs(self) -> dict[str, Any]:
        drivers = [pool.driver for pool in self.parts.pools]
        return {
            "sequences": [i for driver in drivers for i in driver.ledger.sequence_ids],
            "rows": [i for driver in drivers for i in driver.scheduler.state.rows],
            "in flight": [one for driver in drivers for one in driver._in_flight.values()],
            "workers": {
                worker.name: (worker.sessions._sessions._sessions, self.state(worker))
                for worker in self.workers
                if worker.sessions.num_sequences
            },
        }

    def _is_clean(self) -> bool:
        drivers = [pool.driver for pool in self.parts.pools]
        return not any(
            len(driver.ledger) or driver.scheduler.state.rows or driver._in_flight
            for driver in drivers
        ) and not any(worker.sessions.num_sequences for worker in self.workers)


def request(
    prompt: Sequence[int] = (11, 0, 2), max_tokens: int = 20, k: int | None = None, **sampling: Any
) -> GenerationRequest:
    """A request for token ids."""
    return GenerationRequest(
        TokenPrompt(tuple(prompt)),
        SamplingParams(max_tokens=max_tokens, **sampling),
        SpeculationParams(k),
    )


def check_logprobs(answer: Answer, prompt: Sequence[int], rules: ChoiceRules) -> None:
    """What the rules want reported came once for each token, in the order of the tokens."""
    assert answer.error is None
    said = [item for delta in answer.deltas for item in delta.logprobs]
    of_prompt = [item for delta in answer.deltas for item in delta.prompt_logprobs]
    wanted, wanted_of_prompt = rules.num_logprobs, rules.num_prompt_logprobs
    truth = () if wanted is None else reported(prompt, answer.tokens, wanted)
    assert said == list(truth)
    if wanted_of_prompt is not None:
        truth = reported(prompt[:1], prompt[1:], wanted_of_prompt)
    assert of_prompt == list(() if wanted_of_prompt is None else truth)


async def under_way(made: World, asked: GenerationRequest) -> asyncio.Task[Answer]:
    """A request of which something was streamed already."""
    seen = asyncio.Event()
    num_events = 0

    def note() -> None:
        nonlocal num_events
        num_events += 1
        if num_events == 3:
            seen.set()

    asking = asyncio.create_task(made.ask(asked, note))
    await seen.wait()
    return asking


def check(
    answer: Answer,
    prompt: Sequence[int] = (11, 0, 2),
    max_tokens: int = 20,
    rules: ChoiceRules | None = None,
) -> None:
    """It ended well, with what plain decoding by the rules gives."""
    assert answer.error is None
    assert answer.tokens == continuation(prompt, max_tokens, rules=rules)
    assert answer.completed is not None
    assert answer.completed.usage.num_generated_tokens == max_tokens
    assert answer.completed.usage.num_prompt_tokens == len(prompt)


@contextlib.asynccontextmanager
async def world(
    trace: TextIO | None = None, traces: Traces | None = None, **settings: Any
) -> AsyncIterator[World]:
    """A coordinator; at the end everything is checked to be released, then stopped."""
    bell = Bell()
    values = {"lease_seconds": 30.0, "unavailable_seconds": 5.0, "num_speculative_tokens": 4}
    made = CoordinatorSettings(_cli_parse_args=[], **(values | settings))  # type: ignore[call-arg]
    server = RpcServer(SERVICE_NAMES)
    address = server.bind("127.0.0.1", 0, allow_insecure=False)
    parts = build(made, monotonic, traces if trace is None else OneTrace(trace))
    parts.add_to(server.grpc_server)
    on_change = parts.registry._on_change
    parts.registry._on_change = lambda: (on_change(), bell.ring())  # type: ignore[func-returns-value]
    register = parts.registry.register
    parts.registry.register = lambda info: (register(info), bell.ring())  # type: ignore[method-assign]
    await server.start()
    running = asyncio.create_task(parts.service.run())
    async with open_aio_channel(address) as channel:
        made_world = World(parts, address, channel, bell)
        try:
            yield made_world
            await made_world.settle()
        finally:
            for worker in made_world.workers:
                await worker.kill()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await server.stop(0)
            await parts.registry.close()


def renamed(worker: FakeWorker, incarnation: str) -> None:
    """As if its process had been started again."""
    worker.incarnation = incarnation
    if worker.servicer is not None:
        worker.servicer._incarnation = incarnation


def other_facts(**changes: Any) -> ModelFacts:
    """The toy's facts with changes."""
    return replace(facts(), **changes)
