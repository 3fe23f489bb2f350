"""Channels to a server of ours: one set of options for clients, coordinator and workers."""

from __future__ import annotations

import grpc
import grpc.aio

from exspec.core.errors import InvalidRequestError
from exspec.wire.tls import TlsConfig, channel_credentials

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Bound of one message. Rounds are a few hundred bytes; tokenizers are megabytes."""

MAX_REQUEST_BYTES = 4 * 1024 * 1024
"""Bound of one message to the coordinator: prompts, not models."""

MAX_RESUMED_REQUEST_BYTES = 16 * 1024 * 1024
"""The same with what is to be resumed, which comes on top: a few bytes a token."""

MAX_PORT = 65535
KEEPALIVE_MS = 20_000
KEEPALIVE_TIMEOUT_MS = 10_000
MIN_PING_INTERVAL_MS = 10_000

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


def check_address(address: str) -> str:
    """The address, if it is host:port with a port there can be.

    Raises:
        InvalidRequestError: it is not; the library would take another port in silence.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= MAX_PORT:
        raise InvalidRequestError(
            f"address must be host:port with a port from 1 to {MAX_PORT}, got {address!r}",
            field="address",
        )
    return address


def open_channel(address: str, tls: TlsConfig | None = None) -> grpc.Channel:
    """A blocking channel to host:port, in plain text without `tls`. It connects on first use.

    Raises:
        InvalidRequestError: the address is none, or a file of `tls` cannot be used.
    """
    check_address(address)
    if tls is None:
        return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
    return grpc.secure_channel(address, channel_credentials(tls), options=_tls_options(tls))


def open_aio_channel(address: str, tls: TlsConfig | None = None) -> grpc.aio.Channel:
    """An asyncio channel to host:port, in plain text without `tls`. It connects on first use.

    Raises:
        InvalidRequestError: the address is none, or a file of `tls` cannot be used.
    """
    check_address(address)
    if tls is None:
        return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(address, channel_credentials(tls), options=_tls_options(tls))


def _tls_options(tls: TlsConfig) -> tuple[tuple[str, int | str], ...]:
    if not tls.server_name:
        return CHANNEL_OPTIONS
    return (*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", tls.server_name))
