"""The shadow ledger's second half: what whole batches must be like, for every policy.

Sees commands and the shadow's own account only. Names its rules as `scheduler_shadow` does.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from scheduler_accounts import Account, Place, require
from scheduler_shadow import Shadow

from coordinator.scheduler.commands import Draft, Verify
from exspec.core.ids import Role

LOCKSTEP = ("eqspec", "eqspec-static")


@dataclass
class Round:
    """A verify: when its first order went out, and whether it surely began at that moment."""

    begun: int
    is_sure: bool


@dataclass
class RoundRules:
    """Call `check` for every verify right after `Shadow.order`, `end_event` after every event."""

    policy: str
    shadow: Shadow
    rounds: dict[str, list[Round]] = field(default_factory=lambda: defaultdict(list))
    """By target, in the order of the verifies."""
    spent: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Moments at which a target's prefill budget was used up."""
    last_was_spent: dict[str, bool] = field(default_factory=dict)
    may_begin: bool = False
    """Whether a verify that comes of this event without drafts began its round with it."""

    def forget(self, worker_id: str) -> None:
        for kept in (self.rounds, self.spent, self.last_was_spent):
            kept.pop(worker_id, None)

    def check(self, command: Verify, newcomers: set[str]) -> None:
        """`newcomers`: those the target held nothing of before."""
        limits = self.shadow.limits
        require(len(command.orders) <= limits.batch_size, "batch-size", command)
        member = self.shadow.members[command.worker_id]
        live = [name for name in member.holds if self.shadow.rows[name].is_live]
        most = limits.batch_size if self.policy in LOCKSTEP else limits.window
        require(len(live) <= most, "window", command.worker_id, live)
        is_spent = self._check_budget(command)
        if self.policy in LOCKSTEP:
            self._check_lockstep(command, live, is_spent)
        if self.policy == "eqspec-static" and 0 < len(newcomers) < len(member.holds):
            require(self.last_was_spent.get(command.worker_id), "no-refill", command, newcomers)
        if self.policy == "exspec-paper":
            others = [one for k, one in member.flights.items() if k != command.batch_id]
            require(not any(map(self._has_live_rows, others)), "one-group-in-play", command)
        self.last_was_spent[command.worker_id] = is_spent
        if is_spent:
            self.spent[command.worker_id].append(self.shadow.moment)
        self._check_ageing(command)
        self._check_alignment(command, member.holds)
        for order in command.orders:
            account = self.shadow.rows[order.key.sequence_id]
            account.staged = account.begun = None
            account.num_planned, account.is_sure = 0, True

    def _has_live_rows(self, command: Verify) -> bool:
        rows = self.shadow.rows
        return any(rows[order.key.sequence_id].is_live for order in command.orders)

    def end_event(self) -> None:
        """Noted before the next event changes anything: who had no room."""
        shadow = self.shadow
        shadow.moment += 1
        most = shadow.limits.max_batches_in_flight
        if any(len(member.flights) >= most for member in shadow.members.values()):
            shadow.held_back.add(shadow.moment)

    # Prefill

    def _check_budget(self, command: Verify) -> bool:
        """Whether the prefill budget of this batch was used up."""
        limits = self.shadow.limits
        prefilling, deciding, unclear = 0, 0, 0
        for order in command.orders:
            num_fed = order.end - order.start
            account = self.shadow.rows[order.key.sequence_id]
            if order.is_prefill or num_fed > 1 + self._planned(account):
                prefilling += num_fed
            elif num_fed == 1 or account.num_planned is not None:
                deciding += 1
            else:
                unclear += num_fed
        most = limits.max_mixed_prefill_tokens or limits.max_prefill_tokens
        is_mixed = deciding or unclear
        require(is_mixed or prefilling <= limits.max_prefill_tokens, "prefill-budget", command)
        require(prefilling <= most or not deciding, "mixed-budget", command)
        if not deciding and not unclear:
            return prefilling >= limits.max_prefill_tokens
        if limits.max_mixed_prefill_tokens is None:
            return prefilling + unclear > 0  # what passes cost decided
        return prefilling + unclear >= min(most, limits.max_prefill_tokens if unclear else most)

    def _planned(self, account: Account) -> int:
        """K of this round; where its order was never seen, the most it can be."""
        if account.num_planned is not None:
            return account.num_planned
        return max(account.own_drafts or 0, self.shadow.most_drafts)

    # Policies

    def _check_lockstep(self, command: Verify, live: list[str], is_spent: bool) -> None:
        batch = {order.key.sequence_id for order in command.orders}
        for name in live:
            if name in batch:
                continue
            place = self.shadow.members[command.worker_id].holds[name]
            account = self.shadow.rows[name]
            lacking = account.length - place.num_held
            require(is_spent and lacking > 1, "lockstep", f"{name} left out of {command}")

    def check_refill(self, command: Verify) -> None:
        """A lone target that has room, and tokens to spend, leaves no fitting sequence idle."""
        targets = [k for k, m in self.shadow.members.items() if m.role is Role.TARGET]
        member = self.shadow.members[command.worker_id]
        moment = self.shadow.moment
        last = self.rounds[command.worker_id][-1]
        if (
            self.policy != "eqspec"
            or targets != [command.worker_id]
            or not member.is_open
            or not last.is_sure
            or last.begun < moment
        ):
            return
        idle = [
            name
            for name, account in self.shadow.rows.items()
            if account.is_live and account.verifying is None and account.drafting is None
            if account.max_length <= member.max_length and account.touched < moment
        ]
        has_room = (
            len(member.holds) < member.num_slots
            and len(command.orders) < self.shadow.limits.batch_size
            and not self.last_was_spent[command.worker_id]
        )
        require(not (idle and has_room), "refill", idle, command)

    def _check_ageing(self, command: Verify) -> None:
        """No ready row sees more rounds begin without it than it may."""
        moment, rows = self.shadow.moment, self.shadow.rows
        accounts = [rows[order.key.sequence_id] for order in command.orders]
        begun = min((a.begun for a in accounts if a.begun is not None), default=moment)
        is_sure = begun not in self.shadow.held_back and all(a.is_sure for a in accounts)
        is_sure = is_sure and (begun < moment or self.may_begin)
        earlier = self.rounds[command.worker_id]
        if self.policy == "exspec" and is_sure:
            for order, account in zip(command.orders, accounts, strict=True):
                since = account.ready_since
                if since is None or self._may_sit_out(command, order, since):
                    continue
                passed = sum(
                    one.is_sure and since <= one.begun and (one.begun < begun or begun == moment)
                    for one in earlier
                )
                most = self.shadow.limits.longest_wait
                require(passed <= most, "ageing", order, f"passed over {passed} times", account)
        earlier.append(Round(begun, is_sure))

    def _may_sit_out(self, command: Verify, order, since: int) -> bool:
        """In prefill, and no budget was left at some time."""
        was_spent = any(moment >= since for moment in self.spent[command.worker_id])
        return (order.is_prefill or order.end - order.start > 1) and was_spent

    # Alignment

    @staticmethod
    def _check_alignment(command: Verify, holds: dict[str, Place]) -> None:
        plan = command.alignment
        deciding = [order for order in command.orders if not order.is_prefill]
        require((plan is None) == (not deciding), "alignment", "of no rows", command)
        if plan is None:
            return
        require(len(plan.left_pads) == len(deciding), "alignment", "of other rows", command)
        places = [holds[order.key.sequence_id] for order in deciding]
        ends = {place.left_pad + order.start for place, order in zip(places, deciding, strict=True)}
        require(plan.is_noop == (len(ends) == 1), "alignment", "moves what stands well", command)
        for i, (place, order) in enumerate(zip(places, deciding, strict=True)):
            require(plan.left_pads[i] + order.start == plan.width, "alignment", order, plan)
            require(plan.left_pads[i] - place.left_pad == plan.shifts[i], "alignment", order, plan)
            place.left_pad = plan.left_pads[i]


def newcomers_of(shadow: Shadow, command: Draft | Verify) -> set[str]:
    """Rows of a command that its worker holds nothing of; ask before `Shadow.order`."""
    holds = shadow.members[command.worker_id].holds if command.worker_id in shadow.members else {}
    names = {order.key.sequence_id for order in command.orders}
    return {name for name in names if name not in holds}
