"""The shadow ledger: an independent account of what was ordered, held, released and committed.

It sees commands and replies only, never the scheduler's state, and raises `ViolationError` with
the name of the rule that was broken. What concerns whole batches (lockstep, budgets, ageing,
alignment) is in `scheduler_shadow_rounds`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler_accounts import Account, Drafting, Member, Place, Wait, require

from coordinator.scheduler.commands import Draft, Release, Verify
from exspec.core.ids import Role
from exspec.core.rounds import EntryStatus

RESTARTS = (EntryStatus.FAILED, EntryStatus.STALE, EntryStatus.INVALID)


@dataclass
class Shadow:
    """`most_drafts`: no rule gives more; `fixed_drafts`: the rule gives this many wherever it can.

    `moment` counts events.
    """

    limits: object
    most_drafts: int
    fixed_drafts: int | None
    members: dict[str, Member] = field(default_factory=dict)
    rows: dict[str, Account] = field(default_factory=dict)
    epochs: dict[tuple[Role, str], int] = field(default_factory=dict)
    """Highest epoch ordered."""
    moment: int = 0
    held_back: set[int] = field(default_factory=set)
    """Moments before which some worker had no room for one more batch."""

    # What happens

    def lose(self, worker_id: str) -> None:
        member = self.members.pop(worker_id)
        for account in self.rows.values():
            if account.verifying == worker_id:
                account.verifying, account.touched = None, self.moment
            if account.drafting and account.drafting.worker_id == worker_id:
                account.drafting, account.touched = None, self.moment
        self._disturb(member)

    def drain(self, worker_id: str) -> None:
        self.members[worker_id].is_open = False
        self._disturb(self.members[worker_id])

    def _disturb(self, member: Member) -> None:
        """Rows may leave a worker, some of them before anything of it was seen."""
        for name, account in self.rows.items():
            if member.role is Role.DRAFT:
                account.num_planned = account.num_planned or None
            elif name in member.holds:
                self._free(account)
            elif self.place(name, Role.TARGET) is None:
                account.is_sure = False
                account.begun = account.num_planned = None
                account.touched = self.moment
                if account.drafting and account.drafting.wait is Wait.YES:
                    account.drafting.wait = Wait.MAYBE

    def _free(self, account: Account) -> None:
        """It left its target: it waits for nothing, and nothing staged counts."""
        account.staged = account.ready_since = account.begun = None
        account.num_planned, account.touched = 0, self.moment
        if account.drafting:
            account.drafting.wait = Wait.NO

    def give_up(self, worker_id: str, batch_id: int) -> None:
        """Overdue: nobody waits for this draft batch any more."""
        self.members[worker_id].overdue.add(batch_id)
        for account in self.rows.values():
            account.num_planned = account.num_planned or None
            if account.drafting and account.drafting.batch_id == batch_id:
                account.drafting.wait = Wait.NO

    def land(self, command: Draft | Verify) -> None:
        """A batch is over, whatever came of it."""
        member = self.members[command.worker_id]
        del member.flights[command.batch_id]
        member.overdue.discard(command.batch_id)
        for order in command.orders:
            account = self.rows[order.key.sequence_id]
            account.touched = self.moment
            if isinstance(command, Verify):
                account.verifying = None
                account.ready_since = self.moment
            elif account.drafting and account.drafting.batch_id == command.batch_id:
                account.drafting = None

    def waits_for(self, name: str, batch_id: int) -> Wait:
        drafting = self.rows[name].drafting
        if drafting is None or drafting.batch_id != batch_id or not self.rows[name].is_live:
            return Wait.NO
        return drafting.wait

    def stage(self, name: str, num_drafted: int) -> None:
        """A draft came for a row that waits, or may wait, for it."""
        account = self.rows[name]
        account.staged = (account.length, num_drafted)

    def reply(self, worker_id: str, name: str, status: EntryStatus, kv_length: int) -> None:
        """What a worker says it holds."""
        member = self.members[worker_id]
        if status is EntryStatus.NO_CAPACITY:
            member.is_open = False  # is not filled before one of its rows leaves
        place = member.holds.get(name)
        if place is not None:
            place.kv_length = kv_length
            place.must_restart = status in RESTARTS

    def place(self, name: str, role: Role) -> Place | None:
        for member in self.members.values():
            if member.role is role and name in member.holds:
                return member.holds[name]
        return None

    # What is ordered

    def release(self, command: Release) -> None:
        member = self.members.get(command.worker_id)
        require(member, "release-at-a-member", command)
        for name in command.sequence_ids:
            account = self.rows[name]
            require(member.holds.pop(name, None), "release-once", name, command)
            require(account.verifying != command.worker_id, "release-after-verify", name)
            if member.role is Role.TARGET:
                self._free(account)
            elif account.drafting and account.drafting.worker_id == command.worker_id:
                account.drafting = None

    def order(self, command: Draft | Verify) -> None:
        member = self.members.get(command.worker_id)
        require(member, "order-to-a-member", command)
        names = [order.key.sequence_id for order in command.orders]
        require(names, "no-empty-batch", command)
        require(len(set(names)) == len(names), "a-row-once-a-batch", command)
        for order in command.orders:
            self._order_row(command, member, order)
        member.flights[command.batch_id] = command
        most = self.limits.max_batches_in_flight
        require(len(member.flights) <= most, "batches-in-flight", command)
        require(len(member.holds) <= member.num_slots, "slots", command.worker_id, member.holds)
        fed = sum(one.end - one.start for one in command.orders if not one.num_draft_tokens)
        budget = self.limits.max_mixed_prefill_tokens or self.limits.max_prefill_tokens
        require(isinstance(command, Verify) or fed <= budget, "feed-budget", command)

    def _order_row(self, command: Draft | Verify, member: Member, order) -> None:
        name = order.key.sequence_id
        account = self.rows[name]
        require(account.is_live, "only-live-rows", order)
        is_feed = isinstance(command, Draft) and not order.num_draft_tokens
        require(account.verifying is None or is_feed, "one-verify-at-a-time", order)
        require(0 <= order.start < order.end <= account.length, "within-the-log", order, account)
        if isinstance(command, Verify):
            require(order.is_prefill == (order.end < account.length), "prefill-flag", order)
            self._check_drafts_of_verify(account, order)
            account.verifying = command.worker_id
        elif is_feed:
            require(account.drafting is None, "one-draft-at-a-time", order)
            require(order.end < account.length, "feed-stops-short", order, account)
            require(account.own_drafts != 0, "own-number", order, account)
            account.drafting = Drafting(command.worker_id, command.batch_id, Wait.NO)
        else:
            self._check_draft(account, member, order)
            account.drafting = Drafting(command.worker_id, command.batch_id)
            account.num_planned = order.num_draft_tokens
            account.begun = self.moment if account.begun is None else account.begun
        self._check_place(command, member, order)

    def _check_draft(self, account: Account, member: Member, order) -> None:
        """K is at least 1 and at most what the request, the log, the context and the rule allow."""
        require(account.drafting is None, "one-draft-at-a-time", order)
        require(order.end == account.length, "drafts-go-on-from-the-log", order, account)
        require(not member.overdue, "no-draft-while-overdue", order, member.overdue)
        number = order.num_draft_tokens
        useful = min(account.max_length - account.length - 1, member.max_length - account.length)
        require(1 <= number <= useful, "useful-drafts", order, useful)
        if account.own_drafts is not None:
            require(number == min(account.own_drafts, useful), "own-number", order, account)
        elif self.fixed_drafts is not None:
            require(number == min(self.fixed_drafts, useful), "fixed-number", order)
        else:
            require(number <= self.most_drafts, "most-drafts", order)
        place = self.place(order.key.sequence_id, Role.TARGET)
        lacking = account.length - (place.num_held if place else 0)
        require(lacking <= 1 + number, "no-draft-in-prefill", order, lacking)

    def _check_drafts_of_verify(self, account: Account, order) -> None:
        """Exactly what was staged at this length, if the row waited for it and stayed."""
        waits = account.drafting.wait if account.drafting else Wait.NO
        require(waits is not Wait.YES, "verify-after-draft", order, account)
        number = 0
        if account.staged and account.staged[0] == account.length:
            number = account.staged[1]
        possible = {number} if account.is_sure else {0, number}
        require(order.num_draft_tokens in possible, "staged-drafts", order, account)

    def _check_place(self, command: Draft | Verify, member: Member, order) -> None:
        name, epoch = order.key.sequence_id, order.key.epoch
        highest = self.epochs.get((member.role, name), -1)
        self.epochs[member.role, name] = max(epoch, highest)
        place = member.holds.get(name)
        if place is None:
            require(self.place(name, member.role) is None, "one-home-per-role", order)
            require(epoch > highest, "epoch-rises-with-the-home", order, highest)
            require(order.start == 0, "a-new-home-holds-nothing", order)
            member.holds[name] = Place(epoch, order.key.round_index)
            return
        require(epoch >= place.epoch, "epoch-never-falls", order, place)
        require(order.key.round_index > place.round_index, "round-rises", order, place)
        require(not place.must_restart or epoch > place.epoch, "must-restart", order, place)
        if epoch > place.epoch:
            place.kv_length = place.left_pad = 0
        start = min(place.kv_length, self.rows[name].length - 1)
        require(order.start == start, "starts-where-it-stands", order, place)
        place.epoch, place.round_index = epoch, order.key.round_index
        place.must_restart = False
