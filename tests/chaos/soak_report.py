"""What a soak came to, for people and for programs. Values in, tables and a dictionary out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from tests.chaos.soak_clients import Tally
from tests.chaos.soak_memory import ALLOWED_MIB, Growth
from tests.chaos.soak_orders import FORBIDDEN, Verdict


@dataclass(frozen=True, slots=True)
class Report:
    """A soak at its end."""

    seed: int
    seconds: float
    tally: Tally
    happenings: Mapping[str, int]
    growths: Sequence[Growth]
    problems: Sequence[str]

    @property
    def violations(self) -> list[str]:
        """Why it failed; empty when it did not."""
        found = list(self.problems)
        found += [
            f"{self.tally.verdicts[verdict]} requests: {verdict.value}"
            for verdict in FORBIDDEN
            if self.tally.verdicts[verdict]
        ]
        found += [
            f"{growth.name} grew by {growth.grown_mib:.1f} MiB in {growth.minutes:.1f} minutes, "
            f"{ALLOWED_MIB:g} are allowed"
            for growth in self.growths
            if not growth.is_flat
        ]
        if not self.tally.verdicts[Verdict.RIGHT]:
            found.append("no request was answered")
        return found

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return {
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "requests": {verdict.value: self.tally.verdicts[verdict] for verdict in Verdict},
            "kinds": {kind.value: number for kind, number in self.tally.kinds.items()},
            "errors": dict(self.tally.errors),
            "generated_tokens": self.tally.num_tokens,
            "longest_seconds": round(self.tally.longest_seconds, 2),
            "happenings": dict(self.happenings),
            "memory": [
                asdict(growth) | {"bound_mib": ALLOWED_MIB, "is_flat": growth.is_flat}
                for growth in self.growths
            ],
            "details": list(self.tally.problems),
            "violations": self.violations,
        }


def progress_table(
    tally: Tally, happenings: Mapping[str, int], seconds: float, minutes: float
) -> Table:
    """How far it is."""
    table = Table(title=f"soak: {seconds / 60:.1f} of {minutes:g} minutes", show_header=False)
    table.add_row("prompts", str(tally.num_requests))
    for verdict in Verdict:
        style = "red" if verdict in FORBIDDEN and tally.verdicts[verdict] else ""
        table.add_row(f"  {verdict.value}", str(tally.verdicts[verdict]), style=style)
    table.add_row("errors", _listed(tally.errors))
    table.add_row("tokens checked", str(tally.num_tokens))
    table.add_row("longest request", f"{tally.longest_seconds:.1f} s")
    table.add_row("what happened", _listed(happenings))
    return table


def memory_table(growths: Sequence[Growth]) -> Table:
    """Resident memory of the processes that are there at the end."""
    table = Table("process", "watched, min", "MiB", "grown", "MiB/min")
    table.title = f"memory: {ALLOWED_MIB:g} MiB of growth are allowed"
    for growth in growths:
        table.add_row(
            growth.name,
            f"{growth.minutes:.1f}",
            f"{growth.mib:.1f}",
            f"{growth.grown_mib:+.1f}",
            f"{growth.slope_mib_per_minute:+.2f}",
            style="" if growth.is_flat else "red",
        )
    return table


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in sorted(counts.items())) or "-"
