"""The scheduler's settings, checked. Values only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Bounds that hold for every policy.

    Raises:
        ValueError: when a bound makes no sense.
    """

    batch_size: int = 8
    """Rows a target verifies in lockstep (B), per target; never above the worker's own slots."""
    num_speculative_tokens: int = 5
    """Draft tokens per row and round (K), where the request does not give its own number."""
    max_prefill_tokens: int = 512
    """Prefill tokens in one verify batch, all rows together; longer logs go in chunks."""

    def __post_init__(self) -> None:
        for name, value, least in (
            ("batch_size", self.batch_size, 1),
            ("num_speculative_tokens", self.num_speculative_tokens, 0),
            ("max_prefill_tokens", self.max_prefill_tokens, 1),
        ):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
