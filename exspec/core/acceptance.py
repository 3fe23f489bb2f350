"""What a verified block commits: the accepted prefix, the bonus token, and where the block is cut.

The rules of Leviathan et al. (arXiv 2211.17192) for a target that decides alone, with the
corrections the paper's own code needs (arXiv 2510.22876, section 3): a fully accepted block
yields K + 1 tokens, every row has its own cap, and stop tokens are looked for in new tokens only.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum


class FinishReason(Enum):
    """Why a sequence ended."""

    STOP_TOKEN = "stop_token"
    STOP_STRING = "stop_string"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Acceptance:
    """`num_accepted` draft tokens agreed with the target; `bonus_token` is its next own choice."""

    num_accepted: int
    bonus_token: int


@dataclass(frozen=True, slots=True)
class Block:
    """Tokens a round commits, in order, and why the sequence ends with them (None: it goes on)."""

    tokens: tuple[int, ...]
    finish: FinishReason | None


def accept(draft_tokens: Sequence[int], choices: Sequence[int]) -> Acceptance:
    """Compare K draft tokens with the target's K + 1 own choices at the same positions.

    `choices[i]` is what the target chose given everything before draft token i, so it is only
    meaningful while all earlier draft tokens were accepted.

    Raises:
        ValueError: if there is not exactly one choice more than there are draft tokens.
    """
    if len(choices) != len(draft_tokens) + 1:
        raise ValueError(
            f"{len(draft_tokens)} draft tokens need {len(draft_tokens) + 1} choices, "
            f"got {len(choices)}"
        )
    num_accepted = common_prefix_length(draft_tokens, choices)
    return Acceptance(num_accepted, choices[num_accepted])


def cut_block(
    tokens: Sequence[int],
    *,
    stop_token_ids: Collection[int],
    num_remaining: int,
    num_unstoppable: int = 0,
) -> Block:
    """Cut a block of new tokens right after its first stop token, or at the row's cap.

    The first `num_unstoppable` of them do not stop it. A stop token that is the last one allowed
    counts as a stop, not as length.

    Raises:
        ValueError: if the row may not take any token (it should have finished before).
    """
    if num_remaining < 1:
        raise ValueError(f"num_remaining must be at least 1, got {num_remaining}")
    room = tuple(tokens[:num_remaining])
    for index, token in enumerate(room):
        if token in stop_token_ids and index >= num_unstoppable:
            return Block(room[: index + 1], FinishReason.STOP_TOKEN)
    return Block(room, FinishReason.LENGTH if len(room) == num_remaining else None)


def looked_up_among(num_taken: int, num_drafted: int, num_looked_up: int) -> int:
    """How many of the first `num_taken` of a round's drafts were looked up, if the last ones were.

    `num_looked_up` of the `num_drafted` drafts: they follow a draft model's.
    """
    return max(0, num_taken - (num_drafted - num_looked_up))


def speculation_cap(num_wanted: int, num_remaining: int) -> int:
    """The most draft tokens worth verifying for a row that may commit `num_remaining` more tokens.

    K drafts commit at most K + 1 tokens, so more than `num_remaining - 1` cannot be used.
    """
    return max(0, min(num_wanted, num_remaining - 1))


def common_prefix_length(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading tokens two lists share."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))
