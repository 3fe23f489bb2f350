"""One runner over several ranks: rank 0 says what it does, the others do the same.

The invariant: every rank makes exactly rank 0's calls, in its order, on the same inputs. A call
that fails anywhere may have left the ranks in different states, so it ends the worker: rows are
rebuilt elsewhere from the token log. What the calls look like is `exspec.engine.calls`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from exspec.core.choosing import ChoiceRules
from exspec.core.models import ModelFacts
from exspec.engine.calls import Call, Forward, Release, Stop
from exspec.engine.choosing.choosing import Choosing
from exspec.engine.model_runner import ModelRunner
from exspec.engine.ranks import Ranks
from exspec.engine.rows import PassOutput, RowInput
from exspec.runtime.launch import end_at_once

logger = logging.getLogger(__name__)

EndProcess = Callable[[], object]


def end_process() -> None:
    """At once: threads that wait for other ranks cannot be interrupted."""
    end_at_once(1)


class ShardedRunner:
    """The runner of rank 0, and through it those of all ranks. One thread calls it."""

    def __init__(self, runner: ModelRunner, ranks: Ranks, end: EndProcess = end_process) -> None:
        self._runner = runner
        self._ranks = ranks
        self._end = end

    @property
    def facts(self) -> ModelFacts:
        """Of the whole model."""
        return self._runner.facts

    @property
    def num_slots(self) -> int:
        """Sequences held at once."""
        return self._runner.num_slots

    @property
    def capacity(self) -> int:
        """Tokens of a slot."""
        return self._runner.capacity

    @property
    def kv_bytes(self) -> int:
        """Size of the KV memory of all ranks together; each has as much as the others."""
        return self._runner.kv_bytes * self._ranks.num_ranks

    def open_choosing(self, rules: ChoiceRules) -> Choosing:
        """See `ModelRunner.open_choosing`. Rank 0 chooses, the others never hear of rules."""
        return self._runner.open_choosing(rules)

    def forward(self, rows: Sequence[RowInput]) -> PassOutput:
        """See `ModelRunner.forward`. A bad batch is refused before another rank hears of it."""
        self._runner.check(rows)
        with self._together(Forward(tuple(rows))):
            return self._runner.forward(rows)

    def release(self, slot: int) -> None:
        """See `ModelRunner.release`."""
        self._runner.release(slot)
        with self._together(Release(slot)):
            pass

    def stop(self) -> None:
        """The other ranks may leave; nothing may follow."""
        try:
            self._ranks.send(Stop())
            self._ranks.leave()
        except RuntimeError as error:
            logger.warning("ranks.gone reason=%s", error)

    @contextmanager
    def _together(self, call: Call) -> Iterator[None]:
        with _or_end(self._ranks, self._end):
            self._ranks.send(call)
            yield


def follow(runner: ModelRunner, ranks: Ranks, end: EndProcess = end_process) -> None:
    """Do what rank 0 does until it says stop."""
    while True:
        with _or_end(ranks, end):
            match ranks.receive():
                case Stop():
                    break
                case Release(slot):
                    runner.release(slot)
                case Forward(rows):
                    runner.forward(rows)


@contextmanager
def _or_end(ranks: Ranks, end: EndProcess) -> Iterator[None]:
    """Whatever goes wrong inside ends the process, and with it the worker."""
    try:
        yield
    except Exception:
        logger.exception("ranks.broken rank=%d of=%d", ranks.place.rank, ranks.num_ranks)
        end()
        raise
