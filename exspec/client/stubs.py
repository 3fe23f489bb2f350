"""The generated stubs with types: the only file of the SDK that touches them. No logic."""

# ruff: noqa: ASYNC109 - a timeout here is the call's deadline, which travels with it

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol, TypeVar, cast

import grpc
import grpc.aio

from exspec.v1 import generation_pb2 as pb
from exspec.v1 import generation_pb2_grpc, registry_pb2, registry_pb2_grpc

M = TypeVar("M")
M_co = TypeVar("M_co", covariant=True)
Q_contra = TypeVar("Q_contra", contravariant=True)


Metadata = tuple[tuple[str, str], ...]


class _Calls:
    """The methods of a stub, each with the same metadata."""

    def __init__(self, stub: object, metadata: Metadata) -> None:
        self._stub = stub
        self._metadata = metadata

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(getattr(self._stub, name), metadata=self._metadata)


class UnaryCall(Protocol[Q_contra, M_co]):
    """A method with one answer."""

    def __call__(self, request: Q_contra, /, *, timeout: float) -> M_co: ...


class MessageStream(Protocol[M_co]):
    """A running call with many answers."""

    def __iter__(self) -> Iterator[M_co]: ...
    def __next__(self) -> M_co: ...
    def cancel(self) -> object: ...


class StreamCall(Protocol[Q_contra, M_co]):
    """A method with many answers."""

    def __call__(self, request: Q_contra, /, *, timeout: float) -> MessageStream[M_co]: ...


class AsyncUnaryCall(Protocol[Q_contra, M_co]):
    """A method with one answer, awaited."""

    async def __call__(self, request: Q_contra, /, *, timeout: float) -> M_co: ...


class AsyncMessageStream(Protocol[M_co]):
    """A running call with many answers, awaited one by one; `grpc.aio.EOF` is the end."""

    async def read(self) -> M_co: ...
    def cancel(self) -> object: ...


class AsyncStreamCall(Protocol[Q_contra, M_co]):
    """A method with many answers."""

    def __call__(self, request: Q_contra, /, *, timeout: float) -> AsyncMessageStream[M_co]: ...


class Stubs:
    """The methods of a coordinator, blocking."""

    def __init__(self, channel: grpc.Channel, metadata: Metadata = ()) -> None:
        stub: Any = _Calls(
            cast("Any", generation_pb2_grpc).GenerationServiceStub(channel), metadata
        )
        admin: Any = _Calls(cast("Any", registry_pb2_grpc).AdminServiceStub(channel), metadata)
        self.generate: StreamCall[pb.GenerateRequest, pb.GenerateResponse] = stub.Generate
        self.generate_batch: StreamCall[pb.GenerateBatchRequest, pb.GenerateBatchResponse] = (
            stub.GenerateBatch
        )
        self.list_models: UnaryCall[pb.ListModelsRequest, pb.ListModelsResponse] = stub.ListModels
        self.tokenize: UnaryCall[pb.TokenizeRequest, pb.TokenizeResponse] = stub.Tokenize
        self.detokenize: UnaryCall[pb.DetokenizeRequest, pb.DetokenizeResponse] = stub.Detokenize
        self.cluster_status: UnaryCall[
            registry_pb2.GetClusterStatusRequest, registry_pb2.GetClusterStatusResponse
        ] = admin.GetClusterStatus
        self.drain_worker: UnaryCall[
            registry_pb2.DrainWorkerRequest, registry_pb2.DrainWorkerResponse
        ] = admin.DrainWorker


class AsyncStubs:
    """The methods of a coordinator, awaited."""

    def __init__(self, channel: grpc.aio.Channel, metadata: Metadata = ()) -> None:
        stub: Any = _Calls(
            cast("Any", generation_pb2_grpc).GenerationServiceStub(channel), metadata
        )
        admin: Any = _Calls(cast("Any", registry_pb2_grpc).AdminServiceStub(channel), metadata)
        self.generate: AsyncStreamCall[pb.GenerateRequest, pb.GenerateResponse] = stub.Generate
        self.generate_batch: AsyncStreamCall[pb.GenerateBatchRequest, pb.GenerateBatchResponse] = (
            stub.GenerateBatch
        )
        self.list_models: AsyncUnaryCall[pb.ListModelsRequest, pb.ListModelsResponse] = (
            stub.ListModels
        )
        self.tokenize: AsyncUnaryCall[pb.TokenizeRequest, pb.TokenizeResponse] = stub.Tokenize
        self.detokenize: AsyncUnaryCall[pb.DetokenizeRequest, pb.DetokenizeResponse] = (
            stub.Detokenize
        )
        self.cluster_status: AsyncUnaryCall[
            registry_pb2.GetClusterStatusRequest, registry_pb2.GetClusterStatusResponse
        ] = admin.GetClusterStatus
        self.drain_worker: AsyncUnaryCall[
            registry_pb2.DrainWorkerRequest, registry_pb2.DrainWorkerResponse
        ] = admin.DrainWorker
