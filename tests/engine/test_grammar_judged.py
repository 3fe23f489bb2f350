"""Grammars in blocks with right and wrong drafts give what the judge gives, who asks llguidance
anew about all tokens at every position.
"""

from __future__ import annotations

import json

import pytest

pytest.importorskip("llguidance")

from tokenizers import Tokenizer

from exspec.core.choosing import ChoiceRules, Grammar, GrammarKind
from exspec.engine.grammars import GrammarCompiler
from exspec.engine.loading import ModelSettings, load_model
from exspec.engine.model_runner import ModelRunner
from exspec.engine.reference import generate_plain
from tests.engine.rounds import Limits, speculate
from tests.engine.tiny import save_tiny_model

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yy"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
GRAMMARS = (
    Grammar(GrammarKind.REGEX, "[a-c]{3,9}(d|ef)"),
    Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA)),
    Grammar(GrammarKind.LARK, 'start: "x" /[0-9]{2,8}/ "é"'),
)
HOW = ({}, {"temperature": 1.5, "seed": 4}, {"temperature": 1.0, "top_p": 0.7, "seed": 5})
LIMITS = 30


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    path = save_tiny_model(tmp_path_factory.mktemp("model"), vocab_size=300)
    return load_model(ModelSettings(str(path), dtype="float64"))


def test_texts_are_those_of_the_judge(loaded, layout):
    encode = Tokenizer.from_str(loaded.tokenizer.tokenizer_json).encode
    prompts = [tuple(encode(text).ids) for text in ("Say it", "x", "once more: é")]
    rows = [(p, grammar, how) for p, grammar in zip(prompts, GRAMMARS, strict=True) for how in HOW]
    rules = [ChoiceRules(len(p), grammar=grammar, **how) for p, grammar, how in rows]
    stops = loaded.facts.stop_token_ids
    truths = [
        generate_plain(loaded, p, LIMITS, stops, own)
        for (p, _, _), own in zip(rows, rules, strict=True)
    ]

    def every_third_wrong(request, new, k):
        truth = truths[request][len(new) : len(new) + k]
        return [t if (len(new) + i) % 3 else (t + 1) % 300 for i, t in enumerate(truth)]

    runner = ModelRunner(
        loaded,
        layout=layout,
        num_slots=len(rows),
        capacity=64,
        open_matcher=GrammarCompiler(loaded.tokenizer, loaded.facts).open,
    )
    own_prompts = [prompt for prompt, _, _ in rows]
    done = speculate(runner, own_prompts, every_third_wrong, 4, Limits(LIMITS, stops), rules)
    assert [tuple(sequence.new) for sequence in done] == truths
    assert sum(truth[-1] in stops for truth in truths) >= len(rows) // 2
