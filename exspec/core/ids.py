"""Names for the identifiers that travel through the system, so that they cannot be mixed up.

Only identifiers and the two roles live here.
"""

from __future__ import annotations

from enum import Enum
from typing import NewType

RequestId = NewType("RequestId", str)
"""What a client sent: unique per call, chosen by the client or drawn by the coordinator."""

SequenceId = NewType("SequenceId", str)
"""One generation. Unique over the life of all workers (it holds the coordinator's incarnation)."""

WorkerId = NewType("WorkerId", str)
"""One worker, stable over restarts if its operator names it; else drawn at start."""

BatchId = NewType("BatchId", int)
"""One batch sent to one worker. Unique within a coordinator's life, increasing."""


class Role(Enum):
    """What a worker does."""

    DRAFT = "draft"
    TARGET = "target"
