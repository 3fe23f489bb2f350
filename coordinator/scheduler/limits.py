"""The scheduler's settings, checked. Values only."""

from __future__ import annotations

from dataclasses import dataclass

USUAL_WAIT_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Bounds that hold for every policy.

    Raises:
        ValueError: when a bound makes no sense.
    """

    batch_size: int = 8
    """Rows in one verify batch (B), at most."""
    window_size: int | None = None
    """Rows that may live on a target (W), at most, its own slots bounding it too. None: B."""
    max_wait_rounds: int | None = None
    """Rounds a target may begin without a row that is ready, where the policy ages rows.

    None: `USUAL_WAIT_ROUNDS`, or twice what the window needs to take turns if that is more.
    """
    max_batches_in_flight: int = 2
    """Batches sent to one worker and not answered yet."""
    max_prefill_tokens: int = 512
    """Prefill tokens in a verify batch that decides nothing; longer logs go in chunks."""
    max_mixed_prefill_tokens: int | None = None
    """Prefill tokens in a verify batch that other rows wait for. None: what passes cost decides."""

    def __post_init__(self) -> None:
        for name, value in (
            ("batch_size", self.batch_size),
            ("max_batches_in_flight", self.max_batches_in_flight),
            ("max_prefill_tokens", self.max_prefill_tokens),
            ("max_mixed_prefill_tokens", self.max_mixed_prefill_tokens),
        ):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.window < self.batch_size:
            raise ValueError(
                f"window_size must be at least batch_size, {self.batch_size}, got {self.window}"
            )
        if self.longest_wait < self.least_wait_rounds:
            raise ValueError(
                f"max_wait_rounds must be at least {self.least_wait_rounds} for a window of "
                f"{self.window} rows in batches of {self.batch_size}, got {self.longest_wait}"
            )

    @property
    def window(self) -> int:
        """W."""
        return self.batch_size if self.window_size is None else self.window_size

    @property
    def longest_wait(self) -> int:
        """The bound of `max_wait_rounds`."""
        if self.max_wait_rounds is None:
            return max(USUAL_WAIT_ROUNDS, 2 * self.least_wait_rounds)
        return self.max_wait_rounds

    @property
    def least_wait_rounds(self) -> int:
        """Rounds a row must be ready to wait when the window takes turns: ceil(W / B) - 1."""
        return -(-self.window // self.batch_size) - 1
