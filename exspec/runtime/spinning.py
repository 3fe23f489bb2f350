"""How long a model's idle CPU threads spin before they sleep. Environment only; before torch.

Between two operations a thread that spins is ready at once. But its library's own choice lets it
spin for many milliseconds after a pass, on a core that the next worker's pass, gRPC or other work
wants: a draft and a target that share cores would slow each other down by multiples.
"""

from __future__ import annotations

import os

_WAIT_POLICY = "OMP_WAIT_POLICY"
_BRIEF = {
    "GOMP_SPINCOUNT": "10000",  # GNU: some tenths of a millisecond
    "KMP_BLOCKTIME": "1",  # Intel, LLVM: milliseconds
}
"""Longer than the pause between two operations of a pass, far shorter than one between passes."""


def spin_briefly() -> None:
    """Tell OpenMP libraries, which read it when they are loaded; what a user has set stays."""
    environment = os.environ  # noqa: TID251 - not a setting of ours: where the library looks
    if environment.get(_WAIT_POLICY):
        return
    for name, value in _BRIEF.items():
        environment.setdefault(name, value)
