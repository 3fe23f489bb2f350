"""How a command reaches a coordinator: the options are here, once, for every command that has them.

@app.command()
@tells_errors
@connects
def status(connect: Connect, …): …
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from exspec.cli.bundles import bundled
from exspec.cli.common import DEFAULT_ADDRESS

if TYPE_CHECKING:
    from exspec.client import Access, Client
    from exspec.wire.tls import TlsConfig

R = TypeVar("R")

_PANEL = "Connection"


@dataclass(frozen=True, slots=True)
class Connect:
    """Where the coordinator is, and how it wants to be spoken to. Empty: not given."""

    address: str = DEFAULT_ADDRESS
    api_key: str = field(default="", repr=False)
    has_tls: bool = False
    ssl_ca_certs: str = ""
    ssl_certfile: str = ""
    ssl_keyfile: str = ""
    ssl_server_name: str = ""

    @property
    def tls(self) -> TlsConfig | None:
        """None for plain text: no option of TLS was given."""
        from exspec.wire.tls import TlsConfig

        own = (self.ssl_ca_certs, self.ssl_certfile, self.ssl_keyfile, self.ssl_server_name)
        if not self.has_tls and not any(own):
            return None
        return TlsConfig(
            self.ssl_ca_certs or None,
            self.ssl_certfile or None,
            self.ssl_keyfile or None,
            self.ssl_server_name,
        )

    @property
    def access(self) -> Access:
        """As clients take it."""
        return {"api_key": self.api_key or None, "tls": self.tls}

    def client(self, *, max_retries: int = 2, connect_timeout: float = 5.0) -> Client:
        """A client; to be closed. `connect_timeout` is in seconds."""
        from exspec.client import Client

        return Client(
            self.address, max_retries=max_retries, connect_timeout=connect_timeout, **self.access
        )


def connects(command: Callable[..., R]) -> Callable[..., R]:
    """A command with the options of `_options`; it gets them together as `connect`."""
    return bundled("connect", _options)(command)


def _options(
    *,
    address: Annotated[
        str,
        typer.Option(
            envvar="EXSPEC_ADDRESS", rich_help_panel=_PANEL, help="host:port of the coordinator."
        ),
    ] = DEFAULT_ADDRESS,
    api_key: Annotated[
        str,
        typer.Option(
            envvar="EXSPEC_API_KEY",
            rich_help_panel=_PANEL,
            help="API key. Others on this machine see command lines: better in the environment.",
        ),
    ] = "",
    tls: Annotated[
        bool,
        typer.Option(
            "--tls",
            envvar="EXSPEC_TLS",
            rich_help_panel=_PANEL,
            help="Speak TLS and trust the system's authorities; the options below imply it.",
        ),
    ] = False,
    ssl_ca_certs: Annotated[
        str,
        typer.Option(
            envvar="EXSPEC_SSL_CA_CERTS",
            rich_help_panel=_PANEL,
            help="PEM file with the authority to trust instead.",
        ),
    ] = "",
    ssl_certfile: Annotated[
        str,
        typer.Option(
            envvar="EXSPEC_SSL_CERTFILE",
            rich_help_panel=_PANEL,
            help="PEM file with a certificate to show.",
        ),
    ] = "",
    ssl_keyfile: Annotated[
        str,
        typer.Option(
            envvar="EXSPEC_SSL_KEYFILE", rich_help_panel=_PANEL, help="PEM file with its key."
        ),
    ] = "",
    ssl_server_name: Annotated[
        str,
        typer.Option(
            envvar="EXSPEC_SSL_SERVER_NAME",
            rich_help_panel=_PANEL,
            help="Name the server's certificate must be for, e.g. worker.exspec.internal. "
            "Default: the address's.",
        ),
    ] = "",
) -> Connect:
    """The options themselves."""
    return Connect(
        address=address,
        api_key=api_key,
        has_tls=tls,
        ssl_ca_certs=ssl_ca_certs,
        ssl_certfile=ssl_certfile,
        ssl_keyfile=ssl_keyfile,
        ssl_server_name=ssl_server_name,
    )
