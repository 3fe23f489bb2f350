"""What generation_config.json says of how to choose tokens, as a loaded model announces it."""

from __future__ import annotations

import json

import pytest

from exspec.core.models import GenerationDefaults
from exspec.engine.loading import ModelSettings, load_model
from tests.engine.tiny import save_tiny_model


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A tiny model."""
    return save_tiny_model(tmp_path_factory.mktemp("model") / "m")


def _advice(directory, **stated) -> GenerationDefaults:
    """With this generation_config.json."""
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": 0} | stated))
    return load_model(ModelSettings(str(directory))).facts.generation


@pytest.mark.parametrize(
    ("stated", "advice"),
    [
        ({}, GenerationDefaults()),
        (
            {
                "do_sample": True,
                "temperature": 0.6,
                "top_k": 20,
                "top_p": 0.95,
                "min_p": 0.05,
                "typical_p": 0.9,
                "repetition_penalty": 1.05,
            },
            GenerationDefaults(0.6, 20, 0.95, 0.05, 0.9, 1.05),
        ),
        ({"do_sample": True, "top_p": 0.9}, GenerationDefaults(temperature=1.0, top_p=0.9)),
        ({"temperature": 0.6}, GenerationDefaults(temperature=0.6)),
        ({"do_sample": False, "temperature": 0.6}, GenerationDefaults()),
        (
            {"do_sample": False, "repetition_penalty": 1.1},
            GenerationDefaults(repetition_penalty=1.1),
        ),
    ],
    ids=str,
)
def test_what_the_models_makers_advise_is_announced(directory, stated, advice):
    assert _advice(directory, **stated) == advice


def test_advice_no_request_could_give_is_dropped_and_told(directory, caplog):
    stated = {"temperature": -1.0, "top_p": "much", "top_k": 1.5, "min_p": True, "typical_p": 0.5}
    assert _advice(directory, **stated) == GenerationDefaults(typical_p=0.5)
    assert caplog.text.count("advice_dropped") == 4
    assert "field=top_k why=1.5" in caplog.text
