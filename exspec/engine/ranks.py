"""The processes one model is spread over: how they find each other, agree, and pass on calls.

The only file that knows torch.distributed's process groups. What the calls do is
`exspec.engine.sharded`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from exspec.core.errors import InvalidRequestError, UnavailableError
from exspec.engine.calls import Call, decode, encode
from exspec.runtime.launch import RankPlace

LOADING_TIMEOUT = timedelta(hours=2)
"""Ranks read their shards at different speed."""
IDLE_TIMEOUT = timedelta(days=365)
"""Between two calls nothing has to happen; a rank that dies is noticed by its connection."""
PASS_TIMEOUT = timedelta(seconds=120)
"""How far one rank may be behind another within a pass; then the worker is given up."""

_BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among the ranks. `device` is where its shard lives."""

    place: RankPlace
    device: torch.device
    calls: dist.ProcessGroup

    @property
    def num_ranks(self) -> int:
        """How many there are."""
        return self.place.num_ranks

    @property
    def is_leader(self) -> bool:
        """Rank 0 is the worker; the others do what it does."""
        return self.place.rank == 0

    def agree(self, numbers: torch.Tensor) -> torch.Tensor:
        """The smallest of the ranks' numbers, so that all go on from the same ones.

        They are equal but for numbers that are not finite, which only one rank may have seen; its
        answer is the smaller one. Changes the tensor in place.
        """
        dist.all_reduce(numbers, op=dist.ReduceOp.MIN)
        return numbers

    def send(self, call: Call) -> None:
        """Tell the other ranks; rank 0 only."""
        body = torch.tensor(encode(call), dtype=torch.int64)
        dist.broadcast(torch.tensor([len(body)]), 0, group=self.calls)
        dist.broadcast(body, 0, group=self.calls)

    def receive(self) -> Call:
        """Wait for what rank 0 does next, however long it takes.

        Raises:
            RuntimeError: rank 0 is gone.
        """
        length = torch.zeros(1, dtype=torch.int64)
        dist.broadcast(length, 0, group=self.calls)
        body = torch.zeros(int(length), dtype=torch.int64)
        dist.broadcast(body, 0, group=self.calls)
        return decode(body.tolist())

    def expect_passes(self, timeout: timedelta = PASS_TIMEOUT) -> None:
        """Loading is over: from now on no rank waits longer than this within a pass."""
        dist.distributed_c10d._set_pg_timeout(timeout)  # noqa: SLF001 - there is no other way

    def leave(self) -> None:
        """Give the groups up; nothing may follow."""
        dist.destroy_process_group()


def join_ranks(place: RankPlace, device_name: str) -> Ranks:
    """Meet the other ranks.

    Raises:
        InvalidRequestError: the model cannot be spread over ranks on that device.
        UnavailableError: they did not find each other.
    """
    device = _device_of(place, device_name)
    try:
        dist.init_process_group(
            _BACKENDS[device.type],
            init_method=f"file://{place.store_file}" if place.store_file else "env://",
            rank=place.rank,
            world_size=place.num_ranks,
            timeout=LOADING_TIMEOUT,
            device_id=device if device.type == "cuda" else None,
        )
        calls = dist.new_group(backend="gloo", timeout=IDLE_TIMEOUT)
    except (RuntimeError, ValueError, OSError) as error:
        raise UnavailableError(
            f"the {place.num_ranks} processes of --tensor-parallel did not find each other: {error}"
        ) from error
    assert isinstance(calls, dist.ProcessGroup)
    return Ranks(place, device, calls)


def whole(weights: torch.Tensor) -> torch.Tensor:
    """The tensor itself, gathered from all ranks if each has a part. All ranks must ask for it."""
    return weights.full_tensor() if isinstance(weights, DTensor) else weights


def _device_of(place: RankPlace, device_name: str) -> torch.device:
    """transformers takes the kind of device there is; a rank its own one of them."""
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    if device_name not in ("auto", kind):
        raise InvalidRequestError(
            f"--tensor-parallel runs on all devices of kind {kind!r} here, not on {device_name!r}",
            field="device",
        )
    if kind == "cpu":
        return torch.device("cpu")
    num_devices = torch.cuda.device_count()
    if place.local_rank >= num_devices:
        raise InvalidRequestError(
            f"--tensor-parallel {place.num_ranks} needs a device each, and there are {num_devices}",
            field="tensor_parallel",
        )
    torch.cuda.set_device(place.local_rank)
    return torch.device("cuda", place.local_rank)
