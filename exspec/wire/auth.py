"""Who a call comes from."""

from __future__ import annotations

from urllib.parse import unquote

from exspec.wire.server import Context


def client_name(context: Context) -> str:
    """The name under which a client's calls are counted: its host, without the port."""
    peer = unquote(context.peer())
    kind, _, address = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return peer
    return address.rpartition(":")[0].strip("[]")
