"""Drafts by script: a proposer that says what a test wants, and worlds that are served by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from unittest.mock import patch

from draft_worker.ngram_proposer import NGRAM_VOCAB_SIZE, NgramProposer
from draft_worker.proposer import ProposalRow, Proposals
from exspec.core.choosing import ChoiceRules
from exspec.core.generation import Completed, SpeculationStats
from exspec.engine.kv.layout import KvLayoutName
from tests.engine import policy_workers
from tests.engine.policy_courses import limits
from tests.engine.policy_workers import CAPACITY, Setting
from tests.engine.policy_world import Request, World

Tokens = tuple[int, ...]
Script = Callable[[Tokens, int], Sequence[int]]
"""(the log, how many are wanted) -> what is proposed."""

SETTING = Setting("exspec", "4", KvLayoutName.SLOTS, limits(window=8, in_flight=1))


class ScriptedProposer(NgramProposer):
    """Knows every id, and what the script says."""

    def __init__(self, script: Script, num_slots: int) -> None:
        super().__init__(num_slots=num_slots, longest=1, shortest=1)
        self.capacity = CAPACITY
        self.vocab_size = NGRAM_VOCAB_SIZE
        self._script = script

    def propose(self, rows: list[ProposalRow]) -> Proposals:
        """Up to what each row wants."""
        tokens = tuple(
            tuple(self._script(row.log, row.num_draft_tokens))[: row.num_draft_tokens]
            for row in rows
        )
        return Proposals(tokens=tokens, num_fed=(0,) * len(rows))


def serve(
    requests: Sequence[Request], draft: Script | str = "equal", seed: int = 0, **changes: object
) -> list[SpeculationStats]:
    """Ask all at once, and let the world come to rest; how speculation went, by request.

    `draft` is a script or one of `DRAFTS`; `changes` are the setting's.
    """
    made = policy_workers.DRAFTS
    if not isinstance(draft, str):
        script, draft = draft, "scripted"
        made = {**made, draft: lambda _setting, slots: ScriptedProposer(script, slots)}
    with patch.object(policy_workers, "DRAFTS", made):
        world = World(replace(SETTING, draft=draft, **changes), seed)
        for request in requests:
            world.ask(request)
        world.settle()
    return [_end_of(request).speculation for request in requests]


def _end_of(request: Request) -> Completed:
    assert isinstance(request.end, Completed), request.end
    return request.end


def sampled(prompt: Tokens, seed: int = 0, **rules: object) -> ChoiceRules:
    """Temperature 1, and whatever else."""
    return ChoiceRules(len(prompt), **{"temperature": 1.0, "seed": seed, **rules})  # type: ignore[arg-type]
