"""A card says what a draft is, how it was made, how well it does, and nothing of this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from exspec.distill.card import (
    Card,
    Making,
    Origin,
    command_of,
    origin_of,
    render_card,
    write_card,
)
from exspec.distill.forecast import Forecast
from exspec.distill.imitation import HeldOut
from exspec.distill.plan import DistillPlan, EmbeddingType
from tests.engine.tiny import save_tiny_model
from tests.engine.tiny_gguf import save_tiny_gguf

HELD_OUT = HeldOut(5000, 0.612, 1700, (0.7, 0.5, 0.3, 0.2, 0.1))


@pytest.fixture
def card(tmp_path):
    out = tmp_path / "little-draft"
    out.mkdir()
    files = (out / "model.safetensors", out / "draft_vocab.json")
    for path in files:
        path.write_bytes(b"0" * 1_500_000)
    plan = DistillPlan(target="maker/big", out=out, from_layers=(0, 1, 29), learning_rate=1e-3)
    forecast = Forecast("LlamaForCausalLM", (0, 1, 29), 30, 576, False, 39_000_000, 10_000_000,
                        0, 0, 0)  # fmt: skip
    making = Making(2288, 1830, 265_000, 1353, 3, 7200.4)
    origin = Origin("maker/big", "maker/big", "apache-2.0")
    return Card(plan, forecast, origin, making, 12_288, files, HELD_OUT)


def test_a_card_says_it_all(card):
    text = render_card(card)
    front, _, body = text.removeprefix("---\n").partition("---\n")
    assert front == ("license: apache-2.0\nbase_model: maker/big\npipeline_tag: text-generation\n")
    said = " ".join(body.split())
    for words in (
        "# little-draft",
        "`model.safetensors`; all files 3.0 MB",
        "LlamaForCausalLM, 3 layers, width 576",
        "39,000,000, of them trained 10,000,000",
        "12,288 tokens (`draft_vocab.json`)",
        "Layers 0, 1, 29 of the target's 30",
        "2,288 conversations with 265,000 answer tokens",
        "1,830 answers greedy and the others drawn",
        "Trained 4 times on each in 1,353 steps",
        "its 16 likeliest tokens",
        "learning rate 0.001",
        "7,200 seconds in 3 runs",
        "On 5,000 positions",
        "| as trained | 61.2% | 70.0% | 50.0% | 30.0% | 20.0% | 10.0% | 2.80 |",
        "## Limits",
    ):
        assert words in said, words
    assert "exspec up --model maker/big --draft-model" in body
    assert command_of(card.plan) in body


def test_both_measures_are_told_where_there_are_two(card):
    stored = replace(HELD_OUT, match_rate=0.6)
    rows = [r for r in render_card(replace(card, as_stored=stored)).split("\n") if "| as " in r]
    assert [row.split(" | ")[:2] for row in rows] == [
        ["| as trained", "61.2%"],
        ["| as stored", "60.0%"],
    ]
    assert "Not measured" in render_card(replace(card, held_out=None))


def test_what_is_not_known_is_not_said(card):
    text = render_card(replace(card, origin=Origin("big")))
    assert text.startswith("---\npipeline_tag: text-generation\n---\n")
    assert "License" not in text


def test_other_ways_of_making_it_are_told(card):
    plan = replace(card.plan, num_labels=1, prompts=Path("my.txt"), from_layers=(), num_layers=1)
    forecast = replace(card.forecast, layers=(0,), is_narrow=True, width=384)
    only_weights = card.files[:1]
    other = replace(
        card, plan=plan, forecast=forecast, files=only_weights, making=Making(1, 1, 1, 1, 1, 1.0)
    )
    text = " ".join(render_card(other).split())
    assert "1 layer drawn at random" in text
    assert "projected on 384 directions" in text
    assert "prompts from a file" in text
    assert "cross-entropy, on the target's choice at each position;" in text
    assert "12,288 tokens, all" in text
    assert "1 seconds in one run" in text
    further = replace(card, plan=replace(card.plan, start_from="old-draft"))
    assert "3 layers of old-draft, a draft for the same target, were trained further" in " ".join(
        render_card(further).split()
    )


def test_paths_are_only_as_they_were_typed(card, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = replace(card.plan, target="models/big", out=Path("little-draft"))
    assert str(tmp_path) not in render_card(replace(card, plan=plan, origin=Origin("big")))


def test_writing_a_card(card, tmp_path):
    write_card(tmp_path, card)
    assert (tmp_path / "README.md").read_text() == render_card(card)


def test_the_command_holds_what_is_not_the_default_and_no_time_limit():
    plan = DistillPlan(
        target="my model", out=Path("d"), num_layers=2, hidden_size=64, num_tokens=9,
        num_epochs=1.5, minutes=3.0, num_labels=1, draft_vocab=0,
        embedding_type=EmbeddingType.Q4_1, max_answer_tokens=7,
    )  # fmt: skip
    assert command_of(plan) == (
        "exspec distill --target 'my model' --out d --layers 2 --hidden 64 --draft-vocab 0 "
        "--tokens 9 --epochs 1.5 --labels 1 --max-answer-tokens 7 --embedding-type q4_1"
    )
    chosen = DistillPlan(target="t", out=Path("d"), num_layers=2, from_layers=(0, 5))
    assert command_of(chosen) == "exspec distill --target t --out d --from-layers 0,5"


def test_origins(tmp_path):
    def origin(target):
        return origin_of(DistillPlan(target=str(target), out=Path("d")))

    folder = save_tiny_model(tmp_path / "folder", tokenizer_variant="none")
    assert origin(folder) == Origin("folder")
    (folder / "README.md").write_text("---\ntags: [x]\nlicense: mit\n---\n# folder\n")
    assert origin(folder) == Origin("folder", "", "mit")
    assert origin(save_tiny_gguf(tmp_path / "small.gguf")) == Origin("small")
    assert origin("maker/big") == Origin("maker/big", "maker/big")


@pytest.mark.pair
def test_the_default_target_is_known_by_its_makers_name():
    known = origin_of(DistillPlan(target="smollm2-135m-instruct", out=Path("d")))
    name = "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert known == Origin(name, name, "apache-2.0")
