"""How many slots of a worker are free, asked of the worker itself and not of its coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from exspec.core.ids import Role
from exspec.runtime.clock import monotonic
from exspec.v1 import common_pb2, draft_pb2, draft_pb2_grpc, target_pb2, target_pb2_grpc
from exspec.wire.channel import open_aio_channel

RELEASE_SECONDS = 60.0
"""How long a release may be on its way."""


async def num_slots_lost(address: str, role: Role, num_slots: int) -> int:
    """Slots that a worker does not free although nobody has a sequence any more."""
    deadline = monotonic() + RELEASE_SECONDS
    while (free := await _num_free(address, role, num_slots)) < num_slots:
        if monotonic() > deadline:
            break
        await asyncio.sleep(0.1)
    return num_slots - free


async def _num_free(address: str, role: Role, num_slots: int) -> int:
    """Take all slots there are on a stream of its own, count them, and give them back."""
    names = [f"probe-{index}" for index in range(num_slots + 1)]
    async with open_aio_channel(address) as channel:
        if role is Role.TARGET:
            call = target_pb2_grpc.TargetServiceStub(channel).Verify(
                _two(target_pb2.VerifyRequest, target_pb2.VerifyEntry, names)
            )
        else:
            call = draft_pb2_grpc.DraftServiceStub(channel).Draft(
                _two(draft_pb2.DraftRequest, draft_pb2.DraftEntry, names)
            )
        counts = [
            sum(result.status == common_pb2.ENTRY_STATUS_OK for result in reply.results)
            async for reply in call
        ]
    return counts[0]


async def _two(
    request: Callable[..., Any], entry: Callable[..., Any], names: Iterable[str]
) -> AsyncIterator[Any]:
    """A batch that takes the slots, and one that releases them."""
    entries = [entry(key=common_pb2.EntryKey(sequence_id=n), start=0, tokens=[5]) for n in names]
    yield request(batch_id=1, entries=entries)
    yield request(batch_id=2, released_sequence_ids=names)
