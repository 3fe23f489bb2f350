"""`python -m coordinator.simulation`: what it reads and what it writes."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest

from coordinator.simulation.__main__ import main
from coordinator.simulation.codec import decode
from coordinator.simulation.plan import SimulationPlan
from exspec.core.errors import InvalidRequestError

TINY = {"workload": {"num_requests": 3, "output_tokens": "10"}}


def run(document):
    sink = io.StringIO()
    code = main(io.StringIO(document if isinstance(document, str) else json.dumps(document)), sink)
    return code, [json.loads(line) for line in sink.getvalue().splitlines()]


def test_progress_and_results_come_as_lines():
    code, lines = run({"runs": [TINY, {**TINY, "seed": 1}]})
    assert code == 0
    results = [line["result"] for line in lines if "result" in line]
    assert [result["run"] for result in results] == [0, 1]
    assert results[1]["plan"]["seed"] == 1
    assert results[0]["figures"]["requests"]["num_tokens"] == 30
    progress = [line["progress"] for line in lines if "progress" in line]
    assert progress[-1] == {"run": 1, "num_finished": 3, "num_requests": 3}


def test_costs_are_a_preset_with_parts_replaced():
    costs = {"preset": "data-centre", "wire": {"seconds": 0.25}}
    _, lines = run({"runs": [{**TINY, "costs": costs}]})
    told = lines[-1]["result"]["plan"]["costs"]
    assert (told["verify"]["fixed_seconds"], told["wire"]["seconds"]) == (0.025, 0.25)


def test_a_trace_is_that_of_all_runs():
    trace = [{"arrival_seconds": 1, "prompt_tokens": 5, "output_tokens": 7, "group": "a"}]
    changes = [{"at_seconds": 0.5, "kind": "speed", "worker": "draft-0", "factor": 2}]
    _, lines = run({"trace": trace, "runs": [{"cluster": {"changes": changes}}]})
    result = lines[-1]["result"]
    assert result["figures"]["requests"]["num_tokens"] == 7
    assert result["plan"]["workload"]["num_requests"] == 1
    assert result["plan"]["cluster"]["changes"][0]["kind"] == "speed"


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("{", "not JSON"),
        ([], "expected a JSON object"),
        ({"runs": []}, "there are no runs"),
        ({"runs": [1]}, "a run is an object"),
        ({"runs": [{"speed": 3}]}, "unknown speed"),
        ({"runs": [{"seed": True}]}, "plan.seed: expected a int"),
        ({"runs": [{"costs": {"preset": "x"}}]}, "unknown preset 'x'"),
        ({"runs": [{"costs": {"verify": {}}}]}, "draft is missing"),
        ({"runs": [{"costs": 4}]}, "expected an object"),
        ({"runs": [{"cluster": {"changes": 1}}]}, "expected a list"),
        (
            {"runs": [{"cluster": {"changes": [{"at_seconds": 1, "kind": "x", "worker": "d"}]}}]},
            "expected join or leave or die or speed",
        ),
    ],
)
def test_what_makes_no_sense_is_told_and_not_run(document, words):
    code, lines = run(document)
    assert code == 2
    assert words in lines[-1]["error"]["message"]
    assert lines[-1]["error"]["is_usage"]


def test_decoding_keeps_defaults_and_takes_whole_numbers_for_numbers():
    plan = decode(SimulationPlan, {"scheduler": {"window_size": None, "batch_size": 3}})
    assert (plan.scheduler.batch_size, plan.scheduler.policy) == (3, "eqspec")
    costs = {"verify": {"fixed_seconds": 1}, "draft": {"fixed_seconds": 2}}
    decoded = decode(SimulationPlan, {"costs": costs})
    assert decoded.costs.verify.fixed_seconds == 1.0
    with pytest.raises(InvalidRequestError, match=r"plan\.scheduler\.policy: expected a str"):
        decode(SimulationPlan, {"scheduler": {"policy": 3}})


def test_it_loads_neither_torch_nor_grpc_nor_an_event_loop():
    code = (
        "import sys, coordinator.simulation.__main__\n"
        "found = {'torch', 'grpc', 'asyncio', 'logging'} & set(sys.modules)\n"
        "assert not found, found\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
