"""Entry point: `python -m coordinator.simulation`, or `exspec bench simulate`.

A JSON object comes on stdin: {"runs": [plan, ...]}, each as `plan.SimulationPlan` says. "costs" may
name a preset, {"preset": "data-centre", "wire": {...}}, of which the parts given are replaced. A
"trace": [entry, ...] beside the runs is that of all of them. JSON lines go to stdout as they come:

    {"progress": {"run": 0, "num_finished": 10, "num_requests": 100}}
    {"result": {"run": 0, "plan": ..., "figures": ...}}
    {"error": {"field": "policy", "message": ..., "is_usage": true}}

The only shell of the simulation: streams and the processor clock are touched here alone.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TextIO, cast

from coordinator.simulation.codec import decode
from coordinator.simulation.plan import SimulationPlan
from coordinator.simulation.presets import PRESETS
from coordinator.simulation.results import SimulationResult
from coordinator.simulation.simulator import simulate
from exspec.core.errors import ExspecError, InvalidRequestError

MAX_PROGRESS_LINES = 100
"""Per run."""
EXIT_FAILED = 1
EXIT_USAGE = 2

Tell = Callable[[Mapping[str, object]], None]


def plans_of(document: object) -> list[SimulationPlan]:
    """The runs of what came on stdin.

    Raises:
        InvalidRequestError: it makes no sense.
    """
    if not isinstance(document, dict):
        raise InvalidRequestError("expected a JSON object with runs", field="runs")
    given = cast("dict[str, object]", document)
    runs = given.get("runs")
    if not isinstance(runs, list) or not runs:
        raise InvalidRequestError("there are no runs", field="runs")
    return [_plan_of(run, given.get("trace")) for run in cast("list[object]", runs)]


def _plan_of(run: object, trace: object) -> SimulationPlan:
    if not isinstance(run, dict):
        raise InvalidRequestError(f"a run is an object, not {run!r}", field="runs")
    plan = dict(cast("dict[str, object]", run))
    costs = plan.get("costs")
    if isinstance(costs, dict):
        plan["costs"] = _costs_of(cast("dict[str, object]", costs))
    workload = plan.get("workload", {})
    if trace and isinstance(workload, dict):
        plan["workload"] = {"trace": trace, **cast("dict[str, object]", workload)}
    return decode(SimulationPlan, plan)


def _costs_of(costs: Mapping[str, object]) -> Mapping[str, object]:
    """Coefficients, the parts that are not given taken from the preset that is named."""
    if "preset" not in costs:
        return costs
    preset, parts = costs["preset"], {name: costs[name] for name in costs if name != "preset"}
    if not isinstance(preset, str) or preset not in PRESETS:
        raise InvalidRequestError(
            f"unknown preset {preset!r}, expected one of {', '.join(PRESETS)}", field="preset"
        )
    return {**asdict(PRESETS[preset]), **parts}


def run_all(plans: list[SimulationPlan], tell: Tell) -> None:
    """One after the other; results are told as they come."""
    for run, plan in enumerate(plans):
        # Processor time, so that other programs on the machine do not count as the scheduler's.
        result = simulate(plan, time.process_time, _teller(tell, run))
        tell({"result": {"run": run, "plan": _plan_dict(plan), "figures": _figures(result)}})


def _teller(tell: Tell, run: int) -> Callable[[int, int], None]:
    """Progress in at most `MAX_PROGRESS_LINES` lines."""
    told = -1

    def on_progress(num_finished: int, num_requests: int) -> None:
        nonlocal told
        share = num_finished * MAX_PROGRESS_LINES // num_requests
        if share != told:
            told = share
            numbers = {"run": run, "num_finished": num_finished, "num_requests": num_requests}
            tell({"progress": numbers})

    return on_progress


def _plan_dict(plan: SimulationPlan) -> dict[str, object]:
    """For the record; a trace is told by its length alone."""
    document = asdict(plan)
    workload = document["workload"]
    workload["num_requests"] = len(plan.workload.trace) or plan.workload.num_requests
    del workload["trace"]
    for change in document["cluster"]["changes"]:
        change["kind"] = change["kind"].value
    return document


def _figures(result: SimulationResult) -> dict[str, object]:
    figures = asdict(result)
    figures["rounds"]["wasted_drafts"] = result.rounds.wasted_drafts
    return figures


def main(source: TextIO, sink: TextIO) -> int:
    """0 if all runs ended, 2 if a plan makes no sense, 1 if a run failed."""

    def tell(line: Mapping[str, object]) -> None:
        sink.write(json.dumps(line) + "\n")
        sink.flush()

    try:
        run_all(plans_of(json.load(source)), tell)
    except json.JSONDecodeError as error:
        tell(_error_line(InvalidRequestError(f"not JSON: {error}", field="runs")))
        return EXIT_USAGE
    except ExspecError as error:
        tell(_error_line(error))
        return EXIT_USAGE if isinstance(error, InvalidRequestError) else EXIT_FAILED
    return 0


def _error_line(error: ExspecError) -> dict[str, object]:
    is_usage = isinstance(error, InvalidRequestError)
    field = error.field if isinstance(error, InvalidRequestError) else ""
    return {"error": {"field": field, "message": error.message, "is_usage": is_usage}}


if __name__ == "__main__":
    sys.exit(main(sys.stdin, sys.stdout))
