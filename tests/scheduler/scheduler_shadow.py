"""The shadow ledger: an independent account of what was ordered, held, released and committed.

It sees commands and replies only, never the scheduler's state, and raises `ViolationError`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.scheduler.commands import Draft, Release, Verify


class ViolationError(AssertionError):
    """The scheduler broke a promise."""


def require(condition: object, message: str) -> None:
    if not condition:
        raise ViolationError(message)


@dataclass
class Place:
    """What one worker was told of one sequence."""

    epoch: int
    round_index: int
    kv_length: int | None = 0
    """None: unknown."""
    must_restart: bool = False


@dataclass
class Shadow:
    """`holds[worker][sequence]` exists from the first order to the release."""

    max_prefill_tokens: int
    batch_size: int
    targets: dict[str, int] = field(default_factory=dict)
    """The longest sequence each takes; 0 for one that drains or refused a row."""
    slots: dict[str, int] = field(default_factory=dict)
    holds: dict[str, dict[str, Place]] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)
    """Committed length of every live sequence."""
    max_lengths: dict[str, int] = field(default_factory=dict)
    staged: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Sequence: (length it was drafted at, number of tokens)."""
    in_flight: dict[str, str] = field(default_factory=dict)
    """Sequence: the worker that has its batch."""
    epochs: dict[tuple[str, str], int] = field(default_factory=dict)
    """(role, sequence): highest epoch ordered."""

    def join(self, worker_id: str, num_slots: int) -> None:
        self.slots[worker_id] = num_slots
        self.targets.pop(worker_id, None)
        self.holds[worker_id] = {}

    def lose(self, worker_id: str) -> None:
        del self.slots[worker_id], self.holds[worker_id]
        self.targets.pop(worker_id, None)

    def close(self, worker_id: str) -> None:
        if worker_id in self.targets:
            self.targets[worker_id] = 0

    def order(self, command: Draft | Verify) -> None:
        names = [order.key.sequence_id for order in command.orders]
        require(names, "an empty batch")
        require(len(set(names)) == len(names), f"a row twice in {command}")
        for order in command.orders:
            self._order_row(command, order)
        held = self.holds[command.worker_id]
        slots = self.slots[command.worker_id]
        require(len(held) <= slots, f"{len(held)} sequences in {slots} slots")
        if isinstance(command, Verify):
            self._check_lockstep(command)

    def _order_row(self, command: Draft | Verify, order) -> None:
        name = order.key.sequence_id
        require(name in self.lengths, f"{name} is ordered but not live")
        require(name not in self.in_flight, f"{name} is in two batches at once")
        self.in_flight[name] = command.worker_id
        length = self.lengths[name]
        require(0 <= order.start < order.end <= length, f"{order} of a log of {length}")
        self._check_key(command, order)
        is_chunk = isinstance(command, Verify) and order.is_prefill
        require(is_chunk == (order.end < length), f"{order} ends short of {length}")
        useful = self.max_lengths[name] - length - 1
        require(order.num_draft_tokens <= useful, f"{order}: only {useful} drafts can be used")
        if isinstance(command, Verify):
            at, number = self.staged.get(name, (-1, 0))
            usable = number if at == length else 0
            require(order.num_draft_tokens <= usable, f"{order} wants {usable} staged drafts")
        else:
            require(order.num_draft_tokens > 0, f"{order} drafts nothing")

    def _check_key(self, command: Draft | Verify, order) -> None:
        name, epoch = order.key.sequence_id, order.key.epoch
        role = type(command).__name__
        highest = self.epochs.get((role, name), -1)
        self.epochs[role, name] = max(epoch, highest)
        place = self.holds[command.worker_id].get(name)
        if place is None:
            require(epoch > highest, f"{order}: a new home under an old epoch")
            require(order.start == 0, f"{order}: a new home holds nothing")
            self.holds[command.worker_id][name] = Place(epoch, order.key.round_index)
            return
        require(epoch >= place.epoch, f"{order}: epoch fell from {place.epoch}")
        require(order.key.round_index > place.round_index, f"{order}: round did not rise")
        require(not place.must_restart or epoch > place.epoch, f"{order}: must restart")
        if epoch == place.epoch and place.kv_length is not None:
            start = min(place.kv_length, self.lengths[name] - 1)
            require(order.start == start, f"{order} should start at {start}")
        if epoch > place.epoch:
            require(order.start == 0, f"{order}: a new epoch starts with the whole log")
        self.holds[command.worker_id][name] = Place(epoch, order.key.round_index, None)

    def _check_lockstep(self, command: Verify) -> None:
        batch = {order.key.sequence_id for order in command.orders}
        left_out = [
            name
            for name in self.holds[command.worker_id]
            if name in self.lengths and name not in batch
        ]
        num_fed = sum(order.end - order.start for order in command.orders)
        budget_spent = num_fed >= self.max_prefill_tokens
        require(not left_out or budget_spent, f"{left_out} left out of {command}")
        decoding = [order for order in command.orders if not order.is_prefill]
        require((command.alignment is None) == (not decoding), "alignment of no rows")
        if command.alignment is not None:
            for order, pad in zip(decoding, command.alignment.left_pads, strict=True):
                end = pad + order.start
                require(end == command.alignment.width, f"{order} is not aligned in {command}")

    def check_refill(self, command: Verify) -> None:
        """A lone target that has room, and tokens to spend, leaves no fitting sequence idle."""
        if list(self.targets) != [command.worker_id]:
            return
        idle = [
            name
            for name in self.lengths
            if name not in self.in_flight
            and self.max_lengths[name] <= self.targets[command.worker_id]
        ]
        num_fed = sum(order.end - order.start for order in command.orders)
        has_room = (
            len(self.holds[command.worker_id]) < self.slots[command.worker_id]
            and len(command.orders) < self.batch_size
            and num_fed < self.max_prefill_tokens
        )
        require(not (idle and has_room), f"{idle} wait though there is room beside {command}")

    def release(self, command: Release) -> None:
        for name in command.sequence_ids:
            held = self.holds.get(command.worker_id)
            require(held is not None, f"{name} released at a stranger, {command.worker_id}")
            require(name in held, f"{name} released twice, or never held, at {command.worker_id}")
            busy_at = self.in_flight.get(name)
            moves = name in self.lengths and busy_at != command.worker_id
            require(busy_at is None or moves, f"{name} released while in flight at {busy_at}")
            del held[name]

    def land(self, names) -> None:
        for name in names:
            self.in_flight.pop(name, None)

    def reply(self, worker_id: str, name: str, kv_length: int | None) -> None:
        """None: the worker's answer says that nothing is certain."""
        place = self.holds.get(worker_id, {}).get(name)
        if place is not None:
            place.kv_length = kv_length
            place.must_restart = kv_length is None
