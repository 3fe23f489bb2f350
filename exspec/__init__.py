"""exspec: exact speculative decoding as a service. Importing this loads neither torch nor a server.

Only names of the SDK are handed on from here, each loaded when it is first asked for, so that the
pure parts of the library can be imported without gRPC.
"""

from __future__ import annotations

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from exspec.client import (
        AsyncBatchStream,
        AsyncClient,
        AsyncGenerationStream,
        BatchResult,
        BatchStream,
        Client,
        GenerationResult,
        GenerationStream,
        ServedModel,
        TlsConfig,
        Tokenization,
    )
    from exspec.core.acceptance import FinishReason
    from exspec.core.choosing import TokenLogprobs
    from exspec.core.errors import (
        AuthenticationError,
        CallerError,
        CapacityError,
        ContextLengthError,
        DeadlineExceededError,
        ExspecError,
        IncompatibleWorkerError,
        InternalError,
        InvalidRequestError,
        ModelNotFoundError,
        PeerError,
        PermissionDeniedError,
        ProtocolError,
        QueueFullError,
        RequestCancelledError,
        ResumeMismatchError,
        SlowReaderError,
        TooManyRequestsError,
        UnavailableError,
        UnsupportedModelError,
        WorkerLostError,
    )
    from exspec.core.generation import ChatMessage, Completed, Delta, Failed, Started

    __version__: str

__all__ = [
    "AsyncBatchStream",
    "AsyncClient",
    "AsyncGenerationStream",
    "AuthenticationError",
    "BatchResult",
    "BatchStream",
    "CallerError",
    "CapacityError",
    "ChatMessage",
    "Client",
    "Completed",
    "ContextLengthError",
    "DeadlineExceededError",
    "Delta",
    "ExspecError",
    "Failed",
    "FinishReason",
    "GenerationResult",
    "GenerationStream",
    "IncompatibleWorkerError",
    "InternalError",
    "InvalidRequestError",
    "ModelNotFoundError",
    "PeerError",
    "PermissionDeniedError",
    "ProtocolError",
    "QueueFullError",
    "RequestCancelledError",
    "ResumeMismatchError",
    "ServedModel",
    "SlowReaderError",
    "Started",
    "TlsConfig",
    "TokenLogprobs",
    "Tokenization",
    "TooManyRequestsError",
    "UnavailableError",
    "UnsupportedModelError",
    "WorkerLostError",
    "__version__",
]

_VALUES = {
    "FinishReason": "exspec.core.acceptance",
    "TokenLogprobs": "exspec.core.choosing",
    **dict.fromkeys(
        ("ChatMessage", "Completed", "Delta", "Failed", "Started"), "exspec.core.generation"
    ),
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the name stands for
    if name == "__version__":
        # Read from files: kept, for a coordinator tells it at every look at its cluster.
        version = globals()[name] = metadata.version("exspec")
        return version
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    default = "exspec.core.errors" if name.endswith("Error") else "exspec.client"
    return getattr(import_module(_VALUES.get(name, default)), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
