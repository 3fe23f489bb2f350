"""`exspec audit equality` from the command line, against a scripted cluster and a tiny model."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig
from typer.testing import CliRunner

from exspec.cli.audit import app
from exspec.client.fake import FakeCoordinator
from exspec.client.fake_answers import FAKE_MODEL_NAME, tokens_of
from exspec.core.choosing import ChoiceRules
from exspec.core.cluster import WorkerInfo, WorkerState, WorkerStatus
from exspec.core.ids import Role, WorkerId
from exspec.engine.loading import ModelSettings, load_model
from exspec.engine.reference import generate_plain

TEXTS = ("abc", "hello there", "x")
MAX_TOKENS = 6
STOPS = (0,)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    """A model whose token ids are all ASCII characters, as the fake's are."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.5,
        eos_token_id=0,
    )
    path = tmp_path_factory.mktemp("model")
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def truths(model_dir):
    """What plain decoding says, as text."""
    loaded = load_model(ModelSettings(model_dir, dtype="float32", device="cpu"))
    tokens = [generate_plain(loaded, tokens_of(text), MAX_TOKENS, STOPS) for text in TEXTS]
    return [bytes(one).decode("ascii") for one in tokens]


@pytest.fixture
def fake(model_dir):
    facts = load_model(ModelSettings(model_dir, dtype="float32", device="cpu")).facts
    target = WorkerInfo(
        WorkerId("target-0"), "1", Role.TARGET, "127.0.0.1:1", 8, facts, kv_layout="padded"
    )
    with FakeCoordinator() as coordinator:
        coordinator.status = replace(
            coordinator.status, workers=(WorkerStatus(target, WorkerState.READY),)
        )
        yield coordinator


def run(fake, model_dir, tmp_path, *options):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(TEXTS))
    report = tmp_path / "report.json"
    arguments = ["equality", "--address", fake.address, "--dataset", f"lines:{prompts}"]
    arguments += ["--no-chat", "--max-tokens", str(MAX_TOKENS), "--batch-size", "1"]
    arguments += ["--model", model_dir, "--json", str(report), *options]
    result = CliRunner().invoke(app, arguments)
    return result, json.loads(report.read_text()) if report.exists() else None


def test_answers_of_plain_decoding_pass(fake, model_dir, truths, tmp_path):
    for truth in truths:
        fake.reply(truth)
    result, report = run(fake, model_dir, tmp_path)
    assert result.exit_code == 0, result.output
    assert report["verdict"] == "PASS"
    (audit,) = report["audits"]
    assert (audit["exact_match"], audit["differences"]) == (1.0, [])
    assert audit["conditions"]["model"] == FAKE_MODEL_NAME
    assert audit["conditions"]["kv_layouts"] == ["padded"]
    assert "100.00%" in result.output


def test_draws_are_held_against_plain_draws(fake, model_dir, tmp_path):
    loaded = load_model(ModelSettings(model_dir, dtype="float32", device="cpu"))
    for text in TEXTS:
        prompt = tokens_of(text)
        rules = ChoiceRules(
            len(prompt), temperature=1.5, top_p=0.9, seed=7, ending_token_ids=STOPS, min_tokens=2
        )
        fake.reply(bytes(generate_plain(loaded, prompt, MAX_TOKENS, STOPS, rules)).decode("ascii"))
    options = ["--temperature", "1.5", "--top-p", "0.9", "--seed", "7", "--min-tokens", "2"]
    result, report = run(fake, model_dir, tmp_path, *options)
    assert result.exit_code == 0, result.output
    assert report["audits"][0]["conditions"]["sampling"] == (
        "temperature 1.5, top_p 0.9, seed 7, min_tokens 2"
    )
    sent = fake.requests[-1].sampling
    assert (sent.temperature, sent.top_k, sent.repetition_penalty, sent.seed) == (1.5, 0, 1.0, 7)


def test_answers_of_plain_decoding_are_not_those_of_a_draw(fake, model_dir, truths, tmp_path):
    for truth in truths:
        fake.reply(truth)
    result, report = run(fake, model_dir, tmp_path, "--temperature", "1.5", "--seed", "7")
    assert result.exit_code == 1
    assert report["verdict"] == "FAIL"


@pytest.mark.parametrize("option", ["--bad-word=x", "--logprobs=2", "--prompt-logprobs=0"])
def test_what_cannot_be_audited_is_refused(fake, model_dir, tmp_path, option):
    result, report = run(fake, model_dir, tmp_path, option)
    assert result.exit_code == 2
    assert report is None
    assert "cannot be audited" in result.output


def test_a_changed_token_fails_and_is_listed(fake, model_dir, truths, tmp_path):
    changed = truths[1][:2] + chr((ord(truths[1][2]) + 1) % 128) + truths[1][3:]
    for answer in (truths[0], changed, truths[2]):
        fake.reply(answer)
    result, report = run(fake, model_dir, tmp_path)
    assert result.exit_code == 1
    (finding,) = report["audits"][0]["differences"]
    assert finding["prompt_id"] == "line-2"
    assert finding["comparison"]["difference"]["position"] == 2
    assert finding["is_tie"] is False
    assert finding["evidence"]["served_gap"] > finding["evidence"]["bound"]


def test_an_answer_cut_short_fails(fake, model_dir, truths, tmp_path):
    for answer in (truths[0], truths[1], truths[2][:-1]):
        fake.reply(answer)
    result, report = run(fake, model_dir, tmp_path)
    assert result.exit_code == 1
    (finding,) = report["audits"][0]["differences"]
    assert finding["comparison"]["difference"]["kind"] == "too_short"


def test_a_cluster_of_other_weights_is_not_judged(fake, model_dir, tmp_path):
    (status,) = fake.status.workers
    facts = replace(status.worker.model, fingerprint="other")
    worker = replace(status.worker, model=facts)
    fake.status = replace(fake.status, workers=(replace(status, worker=worker),))
    result, report = run(fake, model_dir, tmp_path)
    assert result.exit_code == 2
    assert report is None
    assert "not the same weights" in result.output
