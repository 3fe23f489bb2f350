"""One run of a plan from the command to the card: what is checked first, and what is told after.

The stages are `exspec.distill.pipeline`; here are the directory, the disk, and the record of runs.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from exspec.core.errors import ExspecError, InvalidRequestError
from exspec.distill.card import Card, Making, origin_of, write_card
from exspec.distill.chats import Chats
from exspec.distill.directory import taken
from exspec.distill.disk import told_when_full, write_or_tell
from exspec.distill.forecast import Forecast, check_disk, foresee
from exspec.distill.pipeline import DistillReport, Watch, distill
from exspec.distill.plan import DistillPlan
from exspec.distill.prompts import read_prompts
from exspec.engine.gguf_reading import reading_once
from exspec.engine.loading import quiet_transformers
from exspec.engine.sources import find_source
from exspec.engine.tokenizer_assets import read_tokenizer
from exspec.runtime.clock import Clock, monotonic

_RUNS_FILE = "runs.json"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to. `seconds` are those of all `num_runs` runs together."""

    report: DistillReport
    forecast: Forecast
    num_runs: int
    seconds: float


def carry_out(plan: DistillPlan, watch: Watch, clock: Clock = monotonic) -> Outcome:
    """Make the plan's draft, or go on with it; with its card, once it is complete.

    Nothing is written before target, prompts and disk are known to do.

    Raises:
        ExspecError: whatever stands in the way, in the project's terms; what was done is kept.
    """
    began = clock()
    with quiet_transformers():
        forecast = foresee(plan)
        _check_start(plan)
        _check_prompts(plan, watch)
        check_disk(plan, forecast)
        return _work(plan, watch, forecast, clock, began)


def _work(
    plan: DistillPlan, watch: Watch, forecast: Forecast, clock: Clock, began: float
) -> Outcome:
    """The stages, the record of the run, and the card at the end."""
    with taken(plan):
        try:
            report = distill(plan, watch, clock)
        except BaseException:
            with suppress(ExspecError):  # what went wrong is told, not that this did, too
                _record(plan, clock() - began)
            raise
        num_runs, seconds = _record(plan, clock() - began)
        outcome = Outcome(report, forecast, num_runs, seconds)
        if report.is_complete:
            _write_card(plan, outcome)
    return outcome


def _check_start(plan: DistillPlan) -> None:
    """Whether the draft to start from knows the target's tokens; its shape is the forecast's."""
    if plan.start_from is None:
        return
    sources = (
        find_source(plan.target, plan.gguf_file, plan.revision),
        find_source(plan.start_from, None, None),
    )
    with reading_once():
        target, start = (read_tokenizer(source, "untrusted").sha256 for source in sources)
    if target and start and target != start:
        raise InvalidRequestError(
            f"{plan.start_from} has another tokenizer than {plan.target}, so it is no draft for it",
            field="start_from",
        )


def _check_prompts(plan: DistillPlan, watch: Watch) -> None:
    """Whether there will be prompts: from the target's template, or from a file."""
    with reading_once():
        chats = Chats(find_source(plan.target, plan.gguf_file, plan.revision))
    if plan.prompts is None:
        chats.turn_parts()
        return
    number = len(read_prompts(plan.prompts))
    if chats.has_template:
        chats.turn_parts()
    how = "" if chats.has_template else ", as plain text: the target has no chat template"
    watch.note(f"{number:,} prompts from {plan.prompts}{how}")


def _record(plan: DistillPlan, seconds: float) -> tuple[int, float]:
    """Add a run to the record; the number of runs and all their seconds."""
    path = plan.work_dir / _RUNS_FILE
    runs: list[float] = _read_runs(path.read_bytes()) if path.is_file() else []
    runs.append(round(seconds, 1))
    content = json.dumps(runs).encode()
    write_or_tell(path, content, "the record of runs")
    return len(runs), sum(runs)


def _read_runs(content: bytes) -> list[float]:
    """Earlier runs' seconds; a record that was damaged begins anew."""
    try:
        runs: Any = json.loads(content)
    except ValueError:
        return []
    is_fine = isinstance(runs, list) and all(isinstance(one, int | float) for one in runs)
    return runs if is_fine else []


def _write_card(plan: DistillPlan, outcome: Outcome) -> None:
    report = outcome.report
    making = Making(
        report.num_conversations,
        report.num_greedy,
        report.num_answer_tokens,
        report.num_steps,
        outcome.num_runs,
        outcome.seconds,
    )
    card = Card(
        plan,
        outcome.forecast,
        origin_of(plan),
        making,
        report.vocabulary_size,
        report.files,
        report.held_out,
        report.as_stored,
    )
    with told_when_full(plan.out, 1 << 16, "the model card"):
        write_card(plan.out, card)
