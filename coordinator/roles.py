"""What differs between the roles of workers on a link: streams, batches without work, times."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

import grpc.aio

from coordinator.links import HANDSHAKE_SECONDS, Batch, LinkKind, Reply
from coordinator.members import PoolLimits
from exspec.core.ids import BatchId, Role, SequenceId
from exspec.core.rounds import (
    DraftBatch,
    DraftEntry,
    EntryKey,
    VerifyBatch,
)
from exspec.v1 import draft_pb2, draft_pb2_grpc, target_pb2, target_pb2_grpc
from exspec.wire.convert import (
    draft_batch_to_message,
    draft_reply_from_message,
    verify_batch_to_message,
    verify_reply_from_message,
)
from exspec.wire.tls import TlsConfig

PROBE_SECONDS = 2.0
"""Time a draft worker gets for its trial."""
LONGEST_DRAFT_BACKOFF_SECONDS = 60.0
LONGEST_TARGET_BACKOFF_SECONDS = 300.0
"""Where the wait ends up for a worker that keeps failing."""


def link_kind(role: Role, limits: PoolLimits, tls: TlsConfig | None) -> LinkKind:
    """How workers of a role are spoken to; `tls` None is plain text."""
    if role is Role.TARGET:
        return LinkKind(
            exchange=exchange_verifies,
            release=release_verifies,
            timeout_seconds=limits.target_timeout_seconds,
            trial_seconds=HANDSHAKE_SECONDS,
            longest_backoff_seconds=LONGEST_TARGET_BACKOFF_SECONDS,
            tls=tls,
        )
    return LinkKind(
        exchange=exchange_drafts,
        release=release_drafts,
        timeout_seconds=limits.draft_timeout_seconds,
        trial_seconds=min(PROBE_SECONDS, limits.draft_timeout_seconds),
        longest_backoff_seconds=LONGEST_DRAFT_BACKOFF_SECONDS,
        tls=tls,
        probe=probe_draft,
    )


def probe_draft(batch_id: BatchId, sequence_id: SequenceId) -> DraftBatch:
    """The smallest real work there is: one draft token after one token, whichever it is."""
    entry = DraftEntry(EntryKey(sequence_id, 0, 0), 0, (0,), 1)
    return DraftBatch(batch_id, (entry,))


def release_drafts(batch_id: BatchId, sequence_ids: tuple[SequenceId, ...]) -> Batch:
    """A draft batch without work."""
    return DraftBatch(batch_id, (), sequence_ids)


def release_verifies(batch_id: BatchId, sequence_ids: tuple[SequenceId, ...]) -> Batch:
    """A verify batch without work."""
    return VerifyBatch(batch_id, (), sequence_ids)


async def exchange_drafts(
    channel: grpc.aio.Channel, batches: AsyncIterator[Batch], incarnation: str
) -> AsyncGenerator[Reply, None]:
    """DraftService's stream."""

    async def requests() -> AsyncIterator[draft_pb2.DraftRequest]:
        async for batch in batches:
            assert isinstance(batch, DraftBatch)
            yield draft_batch_to_message(batch, incarnation)

    async for response in draft_pb2_grpc.DraftServiceStub(channel).Draft(requests()):
        yield draft_reply_from_message(response)


async def exchange_verifies(
    channel: grpc.aio.Channel, batches: AsyncIterator[Batch], incarnation: str
) -> AsyncGenerator[Reply, None]:
    """TargetService's stream."""

    async def requests() -> AsyncIterator[target_pb2.VerifyRequest]:
        async for batch in batches:
            assert isinstance(batch, VerifyBatch)
            yield verify_batch_to_message(batch, incarnation)

    async for response in target_pb2_grpc.TargetServiceStub(channel).Verify(requests()):
        yield verify_reply_from_message(response)
