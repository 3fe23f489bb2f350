"""Whether a worker's reply fits the batch it was sent; checked whole, before anything is changed.

Every function here reads and raises `ProtocolError`; none changes anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from exspec.core.errors import (
    ExspecError,
    InternalError,
    InvalidRequestError,
    PeerError,
    ProtocolError,
)
from exspec.core.params import SamplingParams
from exspec.core.rounds import (
    DraftBatch,
    DraftEntry,
    DraftReply,
    DraftResult,
    EntryStatus,
    VerifyBatch,
    VerifyEntry,
    VerifyReply,
    VerifyResult,
)

_FIELDS = frozenset(field.name for field in fields(SamplingParams)) | {"sampling"}

MAX_FAILURES = 5
"""Failed verifies in a row after which a sequence is given up."""


def check_draft(batch: DraftBatch, reply: DraftReply) -> None:
    """One possible result per entry, in their order."""
    _check_keys(batch.entries, reply.results)
    for entry, result in zip(batch.entries, reply.results, strict=True):
        num_allowed = entry.num_draft_tokens if result.status is EntryStatus.OK else 0
        if len(result.draft_tokens) > num_allowed:
            raise ProtocolError(f"{len(result.draft_tokens)} draft tokens, {num_allowed} may be")
        if not 0 <= result.num_looked_up <= len(result.draft_tokens):
            raise ProtocolError(
                f"{result.num_looked_up} of {len(result.draft_tokens)} draft tokens looked up"
            )
        _check_length(entry, result, entry.end)


def check_verify(batch: VerifyBatch, reply: VerifyReply) -> None:
    """One possible result per entry, in their order."""
    _check_keys(batch.entries, reply.results)
    for entry, result in zip(batch.entries, reply.results, strict=True):
        if result.status is EntryStatus.OK:
            _check_decision(entry, result)
        _check_length(entry, result, entry.end + result.num_accepted)


def believed_length(result: DraftResult | VerifyResult) -> int:
    """Tokens of the log the worker can be taken to hold; statuses that promise none mean none."""
    if result.status in (EntryStatus.OK, EntryStatus.LACKS_TOKENS):
        return result.kv_length
    return 0


def fatal_error(
    result: VerifyResult, num_failures: int, *, has_rules: bool = False
) -> ExspecError | None:
    """What ends a sequence whose verify came to this, after so many failures in a row before it.

    None: it goes on. Lack of room is no failure: the sequence goes elsewhere, or waits. What a
    target cannot serve because of the sequence's rules is the request's fault, else it is ours.
    """
    if result.status is EntryStatus.INVALID:
        fields = _fields_of(result.detail) if has_rules else ()
        if fields:
            return InvalidRequestError(result.detail, field=fields[0])
        return InternalError(f"the target refused its input: {result.detail}")
    if result.status in (EntryStatus.OK, EntryStatus.NO_CAPACITY):
        return None
    if num_failures + 1 < MAX_FAILURES:
        return None
    return PeerError(f"{MAX_FAILURES} passes failed in a row: {result.detail}")


def _fields_of(detail: str) -> tuple[str, ...]:
    """The request's fields a detail begins with: "field, field: what is wrong"."""
    listed, colon, _ = detail.partition(": ")
    names = tuple(listed.split(", "))
    return names if colon and set(names) <= _FIELDS else ()


def _check_keys(
    entries: Sequence[DraftEntry | VerifyEntry], results: Sequence[DraftResult | VerifyResult]
) -> None:
    if [entry.key for entry in entries] != [result.key for result in results]:
        raise ProtocolError("a worker answered other entries than it was sent")


def _check_decision(entry: VerifyEntry, result: VerifyResult) -> None:
    if result.num_accepted > len(entry.draft_tokens):
        raise ProtocolError(
            f"{result.num_accepted} accepted of {len(entry.draft_tokens)} draft tokens"
        )
    if (result.bonus_token is None) is not entry.is_prefill:
        raise ProtocolError("a verified row needs a bonus token, a prefill chunk has none")
    decided = (*entry.draft_tokens[: result.num_accepted], result.bonus_token)
    if result.logprobs and tuple(one.token_id for one in result.logprobs) != decided:
        raise ProtocolError("logprobs are not of the tokens that were decided")
    _check_prompt_logprobs(entry, result)


def _check_prompt_logprobs(entry: VerifyEntry, result: VerifyResult) -> None:
    """They are of tokens that follow others of the entry."""
    if not result.prompt_logprobs:
        return
    follows = entry.tokens if entry.next_token is None else (*entry.tokens, entry.next_token)
    start = result.prompt_start - entry.start
    scored = tuple(one.token_id for one in result.prompt_logprobs)
    if start < 1 or follows[start : start + len(scored)] != scored:
        raise ProtocolError("logprobs of the prompt are not of its tokens")


def _check_length(
    entry: DraftEntry | VerifyEntry, result: DraftResult | VerifyResult, expected: int
) -> None:
    if result.status is EntryStatus.OK and result.kv_length != expected:
        raise ProtocolError(
            f"a worker holds {result.kv_length} tokens, {expected} follow from its reply"
        )
    if result.status is EntryStatus.LACKS_TOKENS and result.kv_length >= entry.start:
        raise ProtocolError(
            f"a worker holds {result.kv_length} tokens and says that it lacks some before "
            f"{entry.start}"
        )
