"""The SDK: `Client` and `AsyncClient`, what they return, nothing that loads a model.

`exspec.client.fake` holds a coordinator for tests; it is imported on its own.
"""

from __future__ import annotations

from exspec.client.async_streams import AsyncBatchStream, AsyncGenerationStream
from exspec.client.asynchronous import AsyncClient
from exspec.client.attempts import Access
from exspec.client.blocking import Client
from exspec.client.options import BatchOptions, GenerateOptions
from exspec.client.requests import PromptInput
from exspec.client.results import BatchResult, GenerationResult, ServedModel, Tokenization
from exspec.client.streams import BatchStream, GenerationStream
from exspec.client.values import JsonSchema
from exspec.wire.tls import TlsConfig

__all__ = [
    "Access",
    "AsyncBatchStream",
    "AsyncClient",
    "AsyncGenerationStream",
    "BatchOptions",
    "BatchResult",
    "BatchStream",
    "Client",
    "GenerateOptions",
    "GenerationResult",
    "GenerationStream",
    "JsonSchema",
    "PromptInput",
    "ServedModel",
    "TlsConfig",
    "Tokenization",
]
