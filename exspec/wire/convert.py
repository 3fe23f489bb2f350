"""Messages of a round between coordinator and workers, to our values and back. Nowhere else.

A message that makes no sense raises ProtocolError and names the field.
"""

from __future__ import annotations

import math

from exspec.core.choosing import ChoiceRules
from exspec.core.errors import ProtocolError, WorkerLostError
from exspec.core.ids import BatchId, SequenceId
from exspec.core.rounds import (
    DraftBatch,
    DraftEntry,
    DraftReply,
    DraftResult,
    EntryKey,
    EntryStatus,
    PassTimings,
    VerifyBatch,
    VerifyEntry,
    VerifyReply,
    VerifyResult,
)
from exspec.v1 import common_pb2, draft_pb2, target_pb2
from exspec.wire.convert_rules import (
    logprobs_from_messages,
    logprobs_to_messages,
    rules_from_message,
    rules_to_message,
)

_STATUSES = {
    EntryStatus.OK: common_pb2.ENTRY_STATUS_OK,
    EntryStatus.LACKS_TOKENS: common_pb2.ENTRY_STATUS_LACKS_TOKENS,
    EntryStatus.STALE: common_pb2.ENTRY_STATUS_STALE,
    EntryStatus.NO_CAPACITY: common_pb2.ENTRY_STATUS_NO_CAPACITY,
    EntryStatus.INVALID: common_pb2.ENTRY_STATUS_INVALID,
    EntryStatus.FAILED: common_pb2.ENTRY_STATUS_FAILED,
}
_STATUSES_BACK = {value: key for key, value in _STATUSES.items()}


def verify_batch_to_message(batch: VerifyBatch, incarnation: str = "") -> target_pb2.VerifyRequest:
    """Work for a target worker."""
    entries = [
        target_pb2.VerifyEntry(
            key=_key_to_message(entry.key),
            start=entry.start,
            tokens=entry.tokens,
            draft_tokens=entry.draft_tokens,
            is_prefill=entry.is_prefill,
            rules=_rules_to_message(entry.rules),
            next_token=entry.next_token,
        )
        for entry in batch.entries
    ]
    return target_pb2.VerifyRequest(
        batch_id=batch.batch_id,
        entries=entries,
        released_sequence_ids=batch.released,
        incarnation=incarnation,
    )


def verify_batch_from_message(message: target_pb2.VerifyRequest) -> VerifyBatch:
    """Work for a target worker; ProtocolError when an entry makes no sense."""
    entries = tuple(_verify_entry(entry) for entry in message.entries)
    _require_distinct(tuple(entry.key for entry in entries))
    return VerifyBatch(BatchId(message.batch_id), entries, _released(message))


def verify_reply_to_message(reply: VerifyReply) -> target_pb2.VerifyResponse:
    """What a target worker decided."""
    results = [
        target_pb2.VerifyResult(
            key=_key_to_message(result.key),
            status=_STATUSES[result.status],
            kv_length=result.kv_length,
            num_accepted=result.num_accepted,
            bonus_token=result.bonus_token,
            detail=result.detail,
            logprobs=logprobs_to_messages(result.logprobs),
            prompt_start=result.prompt_start,
            prompt_logprobs=logprobs_to_messages(result.prompt_logprobs),
        )
        for result in reply.results
    ]
    return target_pb2.VerifyResponse(
        batch_id=reply.batch_id, results=results, timings=_timings_to_message(reply.timings)
    )


def verify_reply_from_message(message: target_pb2.VerifyResponse) -> VerifyReply:
    """What a target worker decided; ProtocolError when it makes no sense."""
    results = tuple(
        VerifyResult(
            _key_from_message(result.key),
            _status_from_message(result.status),
            result.kv_length,
            result.num_accepted,
            result.bonus_token if result.HasField("bonus_token") else None,
            result.detail,
            logprobs_from_messages(result.logprobs),
            result.prompt_start,
            logprobs_from_messages(result.prompt_logprobs),
        )
        for result in message.results
    )
    return VerifyReply(BatchId(message.batch_id), results, _timings_from_message(message.timings))


def draft_batch_to_message(batch: DraftBatch, incarnation: str = "") -> draft_pb2.DraftRequest:
    """Work for a draft worker."""
    entries = [
        draft_pb2.DraftEntry(
            key=_key_to_message(entry.key),
            start=entry.start,
            tokens=entry.tokens,
            num_draft_tokens=entry.num_draft_tokens,
            rules=_rules_to_message(entry.rules),
        )
        for entry in batch.entries
    ]
    return draft_pb2.DraftRequest(
        batch_id=batch.batch_id,
        entries=entries,
        released_sequence_ids=batch.released,
        incarnation=incarnation,
    )


def draft_batch_from_message(message: draft_pb2.DraftRequest) -> DraftBatch:
    """Work for a draft worker; ProtocolError when an entry makes no sense."""
    entries = tuple(_draft_entry(entry) for entry in message.entries)
    _require_distinct(tuple(entry.key for entry in entries))
    return DraftBatch(BatchId(message.batch_id), entries, _released(message))


def draft_reply_to_message(reply: DraftReply) -> draft_pb2.DraftResponse:
    """What a draft worker proposes."""
    results = [
        draft_pb2.DraftResult(
            key=_key_to_message(result.key),
            status=_STATUSES[result.status],
            kv_length=result.kv_length,
            draft_tokens=result.draft_tokens,
            detail=result.detail,
            num_looked_up=result.num_looked_up,
        )
        for result in reply.results
    ]
    return draft_pb2.DraftResponse(
        batch_id=reply.batch_id, results=results, timings=_timings_to_message(reply.timings)
    )


def draft_reply_from_message(message: draft_pb2.DraftResponse) -> DraftReply:
    """What a draft worker proposes; ProtocolError when it makes no sense."""
    results = tuple(
        DraftResult(
            _key_from_message(result.key),
            _status_from_message(result.status),
            result.kv_length,
            tuple(result.draft_tokens),
            result.detail,
            result.num_looked_up,
        )
        for result in message.results
    )
    return DraftReply(BatchId(message.batch_id), results, _timings_from_message(message.timings))


def _verify_entry(message: target_pb2.VerifyEntry) -> VerifyEntry:
    key = _key_from_message(message.key)
    if not message.tokens:
        raise ProtocolError(f"entry {key.sequence_id}: tokens must hold at least one token")
    if message.is_prefill and message.draft_tokens:
        raise ProtocolError(f"entry {key.sequence_id}: a prefill chunk takes no draft_tokens")
    return VerifyEntry(
        key,
        message.start,
        tuple(message.tokens),
        tuple(message.draft_tokens),
        message.is_prefill,
        _rules_from(message),
        message.next_token if message.HasField("next_token") else None,
    )


def _draft_entry(message: draft_pb2.DraftEntry) -> DraftEntry:
    key = _key_from_message(message.key)
    if not message.tokens:
        raise ProtocolError(f"entry {key.sequence_id}: tokens must hold at least one token")
    return DraftEntry(
        key, message.start, tuple(message.tokens), message.num_draft_tokens, _rules_from(message)
    )


def _rules_to_message(rules: ChoiceRules | None) -> common_pb2.ChoiceRules | None:
    return None if rules is None else rules_to_message(rules)


def _rules_from(message: target_pb2.VerifyEntry | draft_pb2.DraftEntry) -> ChoiceRules | None:
    return rules_from_message(message.rules) if message.HasField("rules") else None


def require_incarnation(meant: str, own: str) -> None:
    """WorkerLostError when a message was meant for another life of the worker, or another one."""
    if meant and meant != own:
        raise WorkerLostError("the worker that registered is gone; another answers at its address")


def _require_distinct(keys: tuple[EntryKey, ...]) -> None:
    if len({key.sequence_id for key in keys}) != len(keys):
        raise ProtocolError("entries: a sequence may appear once in a batch")


def _released(
    message: target_pb2.VerifyRequest | draft_pb2.DraftRequest,
) -> tuple[SequenceId, ...]:
    return tuple(SequenceId(name) for name in message.released_sequence_ids)


def _key_to_message(key: EntryKey) -> common_pb2.EntryKey:
    return common_pb2.EntryKey(
        sequence_id=key.sequence_id, epoch=key.epoch, round_index=key.round_index
    )


def _key_from_message(message: common_pb2.EntryKey) -> EntryKey:
    if not message.sequence_id:
        raise ProtocolError("key.sequence_id must not be empty")
    return EntryKey(SequenceId(message.sequence_id), message.epoch, message.round_index)


def _status_from_message(status: common_pb2.EntryStatus) -> EntryStatus:
    try:
        return _STATUSES_BACK[status]
    except KeyError as error:
        raise ProtocolError(f"result.status {status} is not known") from error


def _timings_to_message(timings: PassTimings) -> common_pb2.PassTimings:
    return common_pb2.PassTimings(
        queue_seconds=timings.queue_seconds,
        align_seconds=timings.align_seconds,
        forward_seconds=timings.forward_seconds,
        total_seconds=timings.total_seconds,
        num_rows=timings.num_rows,
        num_tokens=timings.num_tokens,
        num_moved_rows=timings.num_moved_rows,
    )


def _timings_from_message(message: common_pb2.PassTimings) -> PassTimings:
    for name in ("queue_seconds", "align_seconds", "forward_seconds", "total_seconds"):
        if not 0 <= getattr(message, name) < math.inf:
            raise ProtocolError(f"timings.{name} must be a time, got {getattr(message, name)}")
    return PassTimings(
        queue_seconds=message.queue_seconds,
        align_seconds=message.align_seconds,
        forward_seconds=message.forward_seconds,
        total_seconds=message.total_seconds,
        num_rows=message.num_rows,
        num_tokens=message.num_tokens,
        num_moved_rows=message.num_moved_rows,
    )
