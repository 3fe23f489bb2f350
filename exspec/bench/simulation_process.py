"""Runs the simulator as a program and reads what it says, line by line. Nothing is shown here."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence

from exspec.bench.simulation import Document, RunPlan, Sample
from exspec.core.errors import ExspecError, InvalidRequestError, PeerError

MODULE = "coordinator.simulation"

Progress = Callable[[int, float], None]
"""Called with the number of a run and the share of its requests that ended."""


def ignore_progress(_run: int, _share: float) -> None:
    """For callers that show none."""


def run_simulations(
    plans: Sequence[RunPlan],
    trace: Sequence[Document] = (),
    on_progress: Progress = ignore_progress,
) -> list[Sample]:
    """One sample per plan, in their order. A trace takes the place of every plan's requests.

    Raises:
        InvalidRequestError: a plan makes no sense.
        ExspecError: a run failed.
    """
    document = {"runs": [plan.document() for plan in plans], "trace": list(trace)}
    # -P: a folder that happens to be named like the coordinator must not shadow it.
    command = [sys.executable, "-P", "-m", MODULE]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            _hand_over(process, json.dumps(document))
            results = list(_results(process.stdout, on_progress))
        except BaseException:
            process.kill()
            raise
    if process.returncode or len(results) != len(plans):
        raise PeerError(f"the simulator ended with exit code {process.returncode}")
    return [
        Sample(plan, result["plan"], result["figures"])
        for plan, result in zip(plans, results, strict=True)
    ]


def _hand_over(process: subprocess.Popen[str], text: str) -> None:
    """The simulator reads all of it before it says anything, so the pipes cannot block."""
    assert process.stdin is not None
    try:
        process.stdin.write(text)
        process.stdin.close()
    except BrokenPipeError:
        raise PeerError("the simulator did not start") from None


def _results(lines: Iterable[str], on_progress: Progress) -> Iterable[Document]:
    for text in lines:
        line: Document = json.loads(text)
        if "error" in line:
            raise _error_of(line["error"])
        if "progress" in line:
            progress = line["progress"]
            on_progress(progress["run"], progress["num_finished"] / progress["num_requests"])
        else:
            yield line["result"]


def _error_of(error: Document) -> ExspecError:
    if error["is_usage"]:
        return InvalidRequestError(error["message"], field=error["field"])
    return PeerError(error["message"])
