"""The roles a certificate of the cluster can speak for. Names only; no certificates here."""

from __future__ import annotations

from enum import Enum


class PeerRole(Enum):
    """Who a peer is: the DNS name of the role, which its certificate carries.

    `.internal` is reserved for private use: no public authority signs for these names.
    """

    COORDINATOR = "coordinator.exspec.internal"
    WORKER = "worker.exspec.internal"
    OPERATOR = "operator.exspec.internal"
