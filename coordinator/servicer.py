"""The coordinator's gRPC services: messages to values, values to messages, nothing in between."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace

from coordinator.cluster_view import ClusterView
from coordinator.members import HeartbeatAnswer, PoolLimits
from coordinator.pools import Pools
from coordinator.registry import WorkerRegistry
from coordinator.service import GenerationService
from exspec.core.errors import ExspecError, InternalError
from exspec.core.generation import BatchEvent, Failed, GenerationRequest
from exspec.core.ids import WorkerId
from exspec.v1 import (
    generation_pb2,
    generation_pb2_grpc,
    registry_pb2,
    registry_pb2_grpc,
)
from exspec.wire import convert_generation as convert
from exspec.wire.convert_cluster import status_to_message, worker_from_message
from exspec.wire.server import Context

logger = logging.getLogger(__name__)

HEARTBEATS_PER_LEASE = 5


class GenerationServicer(generation_pb2_grpc.GenerationServiceServicer):
    """What clients call."""

    def __init__(self, service: GenerationService, pools: Pools) -> None:
        self._service = service
        self._pools = pools

    async def Generate(
        self, request: generation_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[generation_pb2.GenerateResponse]:
        """One prompt, streamed."""
        events = self._service.generate(_checked(request))
        async with contextlib.aclosing(events):
            async for event in events:
                yield convert.event_to_message(event)

    async def GenerateBatch(
        self, request: generation_pb2.GenerateBatchRequest, context: Context
    ) -> AsyncIterator[generation_pb2.GenerateBatchResponse]:
        """Several prompts; their events as they come. In the queue they are one group."""
        convert.check_batch(request)
        group = request.request_id or f"batch-{secrets.token_hex(8)}"
        merged: asyncio.Queue[tuple[int, BatchEvent] | None] = asyncio.Queue()
        tasks = [
            asyncio.create_task(self._run_item(request, index, group, merged))
            for index in range(len(request.prompts))
        ]
        num_open = len(tasks)
        try:
            while num_open:
                item = await merged.get()
                if item is None:
                    num_open -= 1
                else:
                    yield convert.batch_event_to_message(*item)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

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
        prompt = convert.prompt_from_message(request.prompt)
        token_ids = await asyncio.to_thread(model.codec.encode, prompt)
        return generation_pb2.TokenizeResponse(token_ids=token_ids, text=model.codec.render(prompt))

    async def Detokenize(
        self, request: generation_pb2.DetokenizeRequest, context: Context
    ) -> generation_pb2.DetokenizeResponse:
        """Token ids to text."""
        model = (await self._service.require_pool(request.model)).model
        token_ids = tuple(request.token_ids)
        self._service.check_ids("token_ids", token_ids, model)
        text = await asyncio.to_thread(model.codec.decode, token_ids)
        return generation_pb2.DetokenizeResponse(text=text)

    async def _run_item(
        self,
        request: generation_pb2.GenerateBatchRequest,
        index: int,
        group: str,
        merged: asyncio.Queue[tuple[int, BatchEvent] | None],
    ) -> None:
        """One prompt of a batch; its failure is an event of its own."""
        try:
            item = replace(_checked(convert.batch_item(request, index)), group=group)
            events = self._service.generate(item)
            async with contextlib.aclosing(events):
                async for event in events:
                    merged.put_nowait((index, event))
        except ExspecError as error:
            merged.put_nowait((index, Failed(error)))
        except Exception:  # one prompt's bug may not take the others down
            logger.exception("generate.item_failed index=%d", index)
            merged.put_nowait((index, Failed(InternalError("internal error; see the log"))))
        merged.put_nowait(None)


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
