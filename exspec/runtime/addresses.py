"""Addresses to listen on, as text, and which of them may be in plain text."""

from __future__ import annotations

import ipaddress

from exspec.core.errors import InvalidRequestError


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def require_closed(setting: str, host: str) -> None:
    """InvalidRequestError if a port in plain text would be open beyond this machine.

    `setting` is what the host was given as, "host" or "metrics_host".
    """
    if not is_loopback(host):
        raise InvalidRequestError(
            f"--{setting.replace('_', '-')} {host!r} is beyond loopback and the port would be in "
            "plain text; give --ssl-certfile, --ssl-keyfile and --ssl-ca-certs for TLS, or "
            "--allow-insecure-bind if plain text is what you want",
            field=setting,
        )


def join_address(host: str, port: int) -> str:
    """host:port, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
