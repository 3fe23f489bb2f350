"""What `exspec watch` says, and when it gives a cluster up. Pure: no clock, no terminal."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from dataclasses import dataclass

from exspec.core.cluster import ClusterStatus
from exspec.core.errors import UnavailableError
from exspec.core.ids import Role


class Readiness:
    """How long a cluster may not be ready: `start_seconds` at first, `lost_seconds` later.

    Owns since when it has not been ready. Times are seconds of one clock.
    """

    def __init__(self, start_seconds: float, lost_seconds: float, now: float) -> None:
        self._patience_seconds = start_seconds
        self._lost_seconds = lost_seconds
        self._missing_since: float | None = now

    def note_ready(self, now: float) -> float | None:
        """It is ready. The seconds it took, if that is news."""
        if self._missing_since is None:
            return None
        took = now - self._missing_since
        self._missing_since = None
        self._patience_seconds = self._lost_seconds
        return took

    def note_missing(self, reason: str, now: float) -> None:
        """It is not ready, or cannot be asked; UnavailableError when that lasts too long."""
        if self._missing_since is None:
            self._missing_since = now
        if now - self._missing_since >= self._patience_seconds:
            raise UnavailableError(f"not ready for {self._patience_seconds:g} s: {reason}")


@dataclass(frozen=True, slots=True)
class Look:
    """The cluster at one moment, in seconds of the watcher's clock."""

    status: ClusterStatus
    at_seconds: float


def tokens_per_second(before: Look | None, now: Look) -> float:
    """Tokens generated between two looks; since its start if the coordinator is another one."""
    tokens = now.status.totals.num_generated_tokens
    if before is None or before.status.totals.num_generated_tokens > tokens:
        seconds = now.status.uptime_seconds
    else:
        tokens -= before.status.totals.num_generated_tokens
        seconds = now.at_seconds - before.at_seconds
    return tokens / seconds if seconds > 0 else 0.0


def live_line(before: Look | None, now: Look) -> str:
    """The figures of a running cluster in one line."""
    status = now.status
    totals = status.totals
    parts = [
        f"requests {totals.num_requests} ({totals.num_failed_requests} failed)",
        f"{tokens_per_second(before, now):.1f} tokens/s",
        f"acceptance length {totals.acceptance_length:.2f}",
        f"running {status.num_running}",
        f"waiting {status.num_waiting}",
        *(f"{role.value} {_states(status, role)}" for role in (Role.TARGET, Role.DRAFT)),
    ]
    return "   ".join(parts)


def _states(status: ClusterStatus, role: Role) -> str:
    """How many workers of a role are in which state: "2 ready, 1 joining"."""
    states = Counter(worker.state for worker in status.workers if worker.worker.role is role)
    return ", ".join(f"{number} {state.value}" for state, number in states.items()) or "none"


@dataclass(frozen=True, slots=True)
class Welcome:
    """How the cluster is reached by those who read this: the texts of the ready screen.

    `address` is host:port as they see it. `ca_file` is the CA's certificate where they keep it;
    empty: plain text. `needs_key`: calls carry an API key. `intro` comes first, as it is.
    """

    address: str
    ca_file: str = ""
    needs_key: bool = False
    intro: str = ""

    def lines(self, status: ClusterStatus, seconds: float) -> list[str]:
        """The ready screen."""
        security = "TLS" if self.ca_file else "plain text"
        return [
            f"ready after {seconds:.0f} s: model {status.model}, policy {status.policy}, "
            f"K = {status.speculation}",
            f"clients: {self.address} ({security}{', API key' if self.needs_key else ''})",
            "",
            *(f"  {line}".rstrip() for line in self._example()),
            "",
        ]

    def _example(self) -> list[str]:
        return [*self.intro.strip().splitlines(), self._command(), "", *self._snippet()]

    def _command(self) -> str:
        parts = ["exspec generate --address", self.address]
        parts += ["--ssl-ca-certs", shlex.quote(self.ca_file)] if self.ca_file else []
        parts += ['--api-key "$EXSPEC_API_KEY"'] if self.needs_key else []
        return " ".join([*parts, '"Why is the sky blue?"'])

    def _snippet(self) -> list[str]:
        arguments = [json.dumps(self.address)]
        arguments += ['api_key=os.environ["EXSPEC_API_KEY"]'] if self.needs_key else []
        arguments += [f"tls=exspec.TlsConfig({json.dumps(self.ca_file)})"] if self.ca_file else []
        return [
            "import os, exspec" if self.needs_key else "import exspec",
            f"with exspec.Client({', '.join(arguments)}) as client:",
            '    print(client.generate("The capital of France is", max_tokens=16).text)',
        ]
