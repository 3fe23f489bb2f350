"""Is what was served what plain decoding gives? Token ids in, findings out.

Pure: no torch, no network. The reference is cut right after its first stop token by its own
definition; what was served is compared as it came, so that a token leaked after the stop is a
difference (the paper's code cut neither, and compared text).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from exspec.core.acceptance import common_prefix_length


class DifferenceKind(Enum):
    """How an answer leaves its reference. Only OTHER_TOKEN can be a matter of rounding."""

    OTHER_TOKEN = "other_token"
    AFTER_STOP = "goes_on_after_stop_token"
    TOO_LONG = "too_long"
    TOO_SHORT = "too_short"


@dataclass(frozen=True, slots=True)
class Difference:
    """The first one. `position` counts generated tokens from 0; None: there is no token there."""

    kind: DifferenceKind
    position: int
    reference_token: int | None
    served_token: int | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One answer beside its reference."""

    reference_length: int
    served_length: int
    common_length: int
    difference: Difference | None

    @property
    def is_exact(self) -> bool:
        """Token for token the same."""
        return self.difference is None

    @property
    def partial_match(self) -> float:
        """Share of the reference that was served before the first difference."""
        if not self.reference_length:
            return 1.0 if self.is_exact else 0.0
        return self.common_length / self.reference_length


@dataclass(frozen=True, slots=True)
class Evidence:
    """The logits where an answer leaves its reference, computed in float64 on the common prefix.

    `margin` is how far the best token leads the second; `reference_gap` and `served_gap` how far
    each of the two tokens in question lies behind the best: by how much two logits would have to
    come nearer for it to be chosen (`exspec.engine.reference_margins`). `rounding_error` is the
    largest difference between the reference's own logits and the float64 ones along this prefix.
    """

    best_token: int
    second_token: int
    margin: float
    reference_gap: float
    served_gap: float
    rounding_error: float

    @property
    def bound(self) -> float:
        """Two logits may each be off by the rounding error, in opposite directions."""
        return 2 * self.rounding_error

    @property
    def is_tie(self) -> bool:
        """Whether rounding alone can make either of the two tokens the choice."""
        return max(self.reference_gap, self.served_gap) <= self.bound


def compare(
    reference: Sequence[int], served: Sequence[int], stop_token_ids: Collection[int]
) -> Comparison:
    """Find the first difference."""
    common = common_prefix_length(reference, served)
    lengths = (len(reference), len(served), common)
    if common == len(reference) == len(served):
        return Comparison(*lengths, None)
    reference_token = reference[common] if common < len(reference) else None
    served_token = served[common] if common < len(served) else None
    if reference_token is not None and served_token is not None:
        kind = DifferenceKind.OTHER_TOKEN
    elif served_token is None:
        kind = DifferenceKind.TOO_SHORT
    elif reference and reference[-1] in stop_token_ids:
        kind = DifferenceKind.AFTER_STOP
    else:
        kind = DifferenceKind.TOO_LONG
    return Comparison(*lengths, Difference(kind, common, reference_token, served_token))
