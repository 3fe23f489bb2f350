"""The coordinator's gRPC services: messages to values, values to messages, nothing in between."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace

from google.protobuf.message import Message

from coordinator.callers import Caller, Places
from coordinator.cluster_view import ClusterView
from coordinator.delivery import merge, write
from coordinator.members import HeartbeatAnswer, PoolLimits
from coordinator.pools import Pools
from coordinator.registry import WorkerRegistry
from coordinator.rules import check_ids
from coordinator.service import GenerationService
from exspec.core.choosing import derive_seed
from exspec.core.errors import ExspecError, InternalError
from exspec.core.generation import BatchEvent, Failed, GenerationRequest
from exspec.core.ids import WorkerId
from exspec.core.params import SEED_BOUND
from exspec.v1 import (
    generation_pb2,
    generation_pb2_grpc,
    registry_pb2,
    registry_pb2_grpc,
)
from exspec.wire import convert_generation as convert
from exspec.wire.auth import client_name
from exspec.wire.convert_cluster import status_to_message, worker_from_message
from exspec.wire.convert_prompt import check_num_ids, prompt_from_message
from exspec.wire.server import Context

logger = logging.getLogger(__name__)

HEARTBEATS_PER_LEASE = 5


@dataclass(frozen=True, slots=True)
class _Share:
    """What a sequence of a batch has with the others: a turn in the queue, and seeds of a kind."""

    group: str
    drawn_seed: int


class GenerationServicer(generation_pb2_grpc.GenerationServiceServicer):
    """What clients call."""

    def __init__(self, service: GenerationService, pools: Pools) -> None:
        self._service = service
        self._pools = pools

    # Both streams write to the context themselves, which the library takes as well, and bounds of
    # what a caller leaves unread need; the generated types know only generators.

    async def Generate(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, request: generation_pb2.GenerateRequest, context: Context
    ) -> None:
        """One prompt, streamed."""
        caller = self._caller(context)
        with self._service.places(caller, 1):
            events = self._service.generate(_checked(request), caller)
            async with contextlib.aclosing(events):
                async for event in events:
                    await self._write(context, convert.event_to_message(event))

    async def GenerateBatch(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, request: generation_pb2.GenerateBatchRequest, context: Context
    ) -> None:
        """Several sequences; their events as they come. In the queue they are one group."""
        convert.check_batch(request)
        caller = self._caller(context)
        drawn = secrets.randbelow(SEED_BOUND)
        group = request.request_id or f"batch-{secrets.token_hex(8)}"
        number = convert.num_sequences(request)
        with self._service.places(caller, number) as places:
            streams = [
                self._item_events(
                    convert.batch_item(request, index),
                    _Share(group, derive_seed(drawn, index)),
                    caller,
                    places,
                )
                for index in range(number)
            ]
            events = merge(streams)
            async with contextlib.aclosing(events):
                async for index, event in events:
                    await self._write(context, convert.batch_event_to_message(index, event))

    async def ListModels(
        self, request: generation_pb2.ListModelsRequest, context: Context
    ) -> generation_pb2.ListModelsResponse:
        """The models whose targets have joined, those whose targets are away included."""
        served = [
            generation_pb2.ServedModel(
                name=pool.name,
                max_length=pool.max_length or pool.model.facts.max_length,
                stop_token_ids=pool.model.facts.stop_token_ids,
                vocab_size=pool.model.facts.vocab_size,
            )
            for pool in self._pools
        ]
        return generation_pb2.ListModelsResponse(models=served)

    async def Tokenize(
        self, request: generation_pb2.TokenizeRequest, context: Context
    ) -> generation_pb2.TokenizeResponse:
        """Text or chat to token ids."""
        model = (await self._service.require_pool(request.model)).model
        prompt = prompt_from_message(request.prompt)
        token_ids = await asyncio.to_thread(model.codec.encode, prompt)
        text = await asyncio.to_thread(model.codec.render, prompt)
        return generation_pb2.TokenizeResponse(token_ids=token_ids, text=text)

    async def Detokenize(
        self, request: generation_pb2.DetokenizeRequest, context: Context
    ) -> generation_pb2.DetokenizeResponse:
        """Token ids to text."""
        model = (await self._service.require_pool(request.model)).model
        check_num_ids("token_ids", len(request.token_ids))
        token_ids = tuple(request.token_ids)
        check_ids("token_ids", token_ids, model)
        text = await asyncio.to_thread(model.codec.decode, token_ids)
        return generation_pb2.DetokenizeResponse(text=text)

    async def _item_events(
        self,
        request: generation_pb2.GenerateRequest,
        share: _Share,
        caller: Caller,
        places: Places,
    ) -> AsyncGenerator[BatchEvent, None]:
        """One prompt of a batch; its failure is an event of its own."""
        try:
            item = replace(_checked(request), group=share.group, drawn_seed=share.drawn_seed)
            events = self._service.generate(item, caller)
            async with contextlib.aclosing(events):
                async for event in events:
                    yield event
        except ExspecError as error:
            yield Failed(error)
        except Exception:  # one prompt's bug may not take the others down
            logger.exception("generate.item_failed request=%s", request.request_id)
            yield Failed(InternalError("internal error; see the log"))
        finally:
            places.release()

    def _caller(self, context: Context) -> Caller:
        return self._service.caller(client_name(context), context.time_remaining())

    async def _write(self, context: Context, message: Message) -> None:
        await write(context, message, self._service.limits.slow_reader_seconds)


def _checked(request: generation_pb2.GenerateRequest) -> GenerationRequest:
    """The request; an error carries its id, as the service's own do."""
    try:
        return convert.request_from_message(request)
    except ExspecError as error:
        if len(request.request_id) <= convert.MAX_REQUEST_ID_LENGTH:
            error.request_id = request.request_id
        raise


class RegistryServicer(registry_pb2_grpc.RegistryServiceServicer):
    """What workers call."""

    def __init__(self, registry: WorkerRegistry, limits: PoolLimits) -> None:
        self._registry = registry
        self._lease_seconds = limits.lease_seconds

    async def Register(
        self, request: registry_pb2.RegisterRequest, context: Context
    ) -> registry_pb2.RegisterResponse:
        """Join, or join again."""
        self._registry.register(worker_from_message(request.worker))
        return registry_pb2.RegisterResponse(
            lease_seconds=self._lease_seconds,
            heartbeat_seconds=self._lease_seconds / HEARTBEATS_PER_LEASE,
        )

    async def Heartbeat(
        self, request: registry_pb2.HeartbeatRequest, context: Context
    ) -> registry_pb2.HeartbeatResponse:
        """A sign of life."""
        answer = self._registry.heartbeat(WorkerId(request.worker_id), request.incarnation)
        return registry_pb2.HeartbeatResponse(
            is_known=answer is not HeartbeatAnswer.REGISTER,
            should_stop=answer is HeartbeatAnswer.STOP,
        )

    async def Drain(
        self, request: registry_pb2.DrainRequest, context: Context
    ) -> registry_pb2.DrainResponse:
        """Leave."""
        num_moved = await self._registry.leave(WorkerId(request.worker_id), request.incarnation)
        return registry_pb2.DrainResponse(num_moved_sequences=num_moved)


class AdminServicer(registry_pb2_grpc.AdminServiceServicer):
    """What operators call."""

    def __init__(self, view: ClusterView, registry: WorkerRegistry) -> None:
        self._view = view
        self._registry = registry

    async def GetClusterStatus(
        self, request: registry_pb2.GetClusterStatusRequest, context: Context
    ) -> registry_pb2.GetClusterStatusResponse:
        """Workers, queue and totals."""
        return status_to_message(self._view.status())

    async def DrainWorker(
        self, request: registry_pb2.DrainWorkerRequest, context: Context
    ) -> registry_pb2.DrainWorkerResponse:
        """Let a worker go."""
        num_moved = await self._registry.drain(WorkerId(request.worker_id))
        return registry_pb2.DrainWorkerResponse(num_moved_sequences=num_moved)
