"""`exspec generate`: which options become which parameters, and what is told of the answer."""

from __future__ import annotations

import json
import shlex

import pytest
from typer.testing import CliRunner

from exspec import InternalError, InvalidRequestError
from exspec.cli.main import app
from exspec.client.fake import FakeCoordinator, FakeReply
from exspec.client.fake_answers import FAKE_SEED
from exspec.client.options import GenerateOptions, Options
from exspec.core.choosing import derive_seed
from exspec.core.generation import RequestTimings, SpeculationStats

SCHEMA = '{"type": "object"}'
ARGUMENTS = {
    "temperature": 0.7, "top_k": 40, "top_p": 0.9, "min_p": 0.05, "typical_p": 0.95,
    "repetition_penalty": 1.1, "presence_penalty": -0.5, "frequency_penalty": 0.5,
    "seed": 2**64 - 1, "min_tokens": 2, "max_tokens": 9, "logprobs": 3, "prompt_logprobs": 0,
    "regex": "[a-z]+",
}  # fmt: skip


@pytest.fixture
def fake():
    with FakeCoordinator() as coordinator:
        yield coordinator


@pytest.fixture
def run(fake):
    def run(*args, **options):
        command = ["generate", "--address", fake.address, "Hi", *args]
        return CliRunner().invoke(app, command, **options)

    return run


def asked_by(**options):
    return Options(options, GenerateOptions).sampling()


def test_options_become_parameters(run, fake):
    flags = [part for name, value in ARGUMENTS.items() for part in (_flag(name), str(value))]
    lists = shlex.split(
        "--stop a --stop b --stop-token-id 7 --stop-token-id 8 --include-stop-str-in-output "
        "--logit-bias 3=1.5 --logit-bias 4=-100 --bad-word no --bad-word never "
        "--banned-token-id 5 --allowed-token-id 6 --allowed-token-id 7"
    )
    assert run(*flags, *lists).exit_code == 0
    (request,) = fake.requests
    assert request.sampling == asked_by(
        **ARGUMENTS, stop=["a", "b"], stop_token_ids=[7, 8], include_stop_str_in_output=True,
        logit_bias={3: 1.5, 4: -100}, bad_words=["no", "never"], banned_token_ids=[5],
        allowed_token_ids=[6, 7],
    )  # fmt: skip


def test_what_is_not_given_is_left_to_the_model(run, fake):
    assert run().exit_code == 0
    assert run("--ignore-eos").exit_code == 0
    first, second = fake.requests
    assert first.sampling == asked_by()
    assert second.sampling == asked_by(ignore_eos=True)


@pytest.mark.parametrize(
    ("option", "written", "keyword"),
    [("--json-schema", SCHEMA, "json_schema"), ("--grammar", "start: /a+/", "grammar")],
)
def test_a_schema_or_grammar_is_text_or_the_name_of_a_file(
    run, fake, tmp_path, option, written, keyword
):
    path = tmp_path / "written"
    path.write_text(written)
    assert run(option, written).exit_code == 0
    assert run(option, str(path)).exit_code == 0
    asked = asked_by(**{keyword: written})
    assert [request.sampling for request in fake.requests] == [asked, asked]
    missing = run(option, str(tmp_path / "missing"))
    assert missing.exit_code == 2
    assert "there is no file" in " ".join(missing.stderr.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--temperature", "-1"], ["--top-p", "0"], ["--logit-bias", "3"],
        ["--logit-bias", "a=1"], ["--regex", "a", "--json-schema", SCHEMA],
        ["--json-schema", "{"], ["--n", "0"], ["--n", "129"], ["--logprobs", "21"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_bad_values_exit_with_2_and_send_nothing(run, fake, arguments):
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr
    assert fake.requests == []


def test_the_seed_of_a_sampled_text_is_told(run):
    assert f"seed {FAKE_SEED}" in run("--temperature", "1").stderr
    assert "seed 12]" in run("--temperature", "1", "--seed", "12").stderr
    assert "seed" not in run().stderr


def test_logprobs_are_a_table_of_tokens(run, fake):
    fake.reply("a\n")
    result = run("--logprobs", "2", "--no-stream")
    assert result.stdout == "a\n\n"
    lines = [" ".join(line.split()) for line in result.stderr.splitlines()]
    assert "0 97 'a' -0.693 97 'a' -0.693 98 'b' -1.386" in lines
    assert "1 10 '\\n' -0.693 10 '\\n' -0.693 11 '\\x0b' -1.386" in lines


def test_several_texts_come_one_after_the_other(run, fake):
    fake.script(FakeReply("first"), FakeReply("second"))
    result = run("--n", "2", "--seed", "5", "--temperature", "1")
    assert result.exit_code == 0
    assert result.stdout == "--- 1 of 2\nfirst\n--- 2 of 2\nsecond\n"
    assert "seed 5]" in result.stderr
    assert f"seed {derive_seed(5, 1)}]" in result.stderr


@pytest.mark.parametrize(
    ("error", "code"), [(InvalidRequestError("odd"), 2), (InternalError("a bug"), 1)]
)
def test_texts_that_came_are_shown_beside_one_that_failed(run, fake, error, code):
    fake.script(FakeReply("first"), FakeReply(error=error))
    result = run("--n", "2")
    assert result.exit_code == code
    assert "first" in result.stdout
    assert f"error: {type(error).__name__}: {error.message}" in result.stderr
    fake.script(FakeReply("first"), FakeReply(error=error))
    first, second = json.loads(run("--n", "2", "--json").stdout)
    assert first["text"] == "first"
    assert error.message in second["error"]


def test_json_has_everything(run, fake):
    fake.script(
        FakeReply(
            "ab",
            speculation=SpeculationStats(2, 6, 1, 3, (2, 2, 2), (1, 0, 0), 4, 1),
            timings=RequestTimings(1.0, 3.0, 7.0),
        )
    )
    answer = json.loads(
        run("--json", "--temperature", "1", "--logprobs", "1", "--prompt-logprobs", "0").stdout
    )
    assert answer["seed"] == FAKE_SEED
    assert answer["logprobs"][1]["token_id"] == 98
    assert answer["logprobs"][1]["top"] == [
        {"token_id": 98, "logprob": answer["logprobs"][1]["logprob"]}
    ]
    assert len(answer["prompt_logprobs"]) == answer["usage"]["num_prompt_tokens"] - 1
    assert answer["speculation"]["num_accepted_per_position"] == [1, 0, 0]
    assert answer["speculation"]["acceptance_length"] == 1.5
    assert answer["speculation"]["num_looked_up_tokens"] == 4
    assert answer["speculation"]["num_model_tokens"] == 2
    assert answer["speculation"]["num_accepted_model_tokens"] == 0
    assert answer["timings"]["prefill_seconds"] == 2.0
    assert answer["timings"]["seconds_per_token"] == 4.0


def test_help_is_in_panels(run):
    shown = run("--help").stdout
    for panel in ("Which token is chosen", "What the text must match", "Connection", "How long"):
        assert panel in shown


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
