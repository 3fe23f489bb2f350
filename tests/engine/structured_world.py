"""Sequences with grammars on a tiny model: rules, drafts of every kind, and what a text must be."""

from __future__ import annotations

import functools
import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from exspec.core.acceptance import accept, cut_block, speculation_cap
from exspec.core.choosing import ChoiceRules, Grammar, GrammarKind
from exspec.engine.choosing.choosing import Choosing
from exspec.engine.grammars import GrammarCompiler
from exspec.engine.kv.layout import KvLayoutName
from exspec.engine.loaded import LoadedModel
from exspec.engine.loading import ModelSettings, wrap_model
from exspec.engine.model_runner import ModelRunner
from exspec.engine.rows import PassOutput, RowInput
from exspec.engine.tokenizer_assets import TokenizerReading
from tests.engine.grammar_oracle import NUM_TOKENS, STOP, VOCAB_SIZE, assets, token_bytes
from tests.engine.tiny import tiny_model

MAX_TOKENS = 44
CAPACITY = 96

_SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"enum": ["abc", "b", True, None]},
        "n": {"type": "integer", "minimum": -20, "maximum": 140},
        "l": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["a", "n"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}


def _fits_schema(text: str) -> bool:
    """The same, without a library."""
    value = json.loads(text)
    return (
        {"a", "n"} <= set(value) <= {"a", "n", "l"}
        and value["a"] in ("abc", "b", True, None)
        and type(value["n"]) is int
        and -20 <= value["n"] <= 140
        and len(value.get("l", [])) <= 2
        and all(type(item) is bool for item in value.get("l", []))
    )


def _fits_sum(text: str) -> bool:
    return bool(re.fullmatch(r"[0-9(]([0-9+()])*", text)) and text.count("(") == text.count(")")


REGEX = r"[a-c]{1,4}(-[0-9]{2}){0,2}|née( é{1,2})?"
GRAMMARS: tuple[tuple[Grammar, Callable[[str], bool]], ...] = (
    (Grammar(GrammarKind.JSON_SCHEMA, json.dumps(_SCHEMA)), _fits_schema),
    (Grammar(GrammarKind.REGEX, REGEX), lambda text: bool(re.fullmatch(REGEX, text))),
    (
        Grammar(GrammarKind.LARK, 'start: e\ne: t ("+" t){0,2}\nt: /[0-9]{1,2}/ | "(" t "+" t ")"'),
        _fits_sum,
    ),
)
SAMPLINGS: tuple[dict[str, object], ...] = (
    {},
    {"temperature": 1.0, "seed": 5},
    {"temperature": 2.0, "seed": 6, "repetition_penalty": 1.2, "top_p": 0.95},
)


def all_rules() -> list[ChoiceRules | None]:
    """Every grammar with every way to sample; rows without any grammar, and without any rule."""
    structured = [
        ChoiceRules(0, grammar=grammar, **sampling)
        for grammar, _ in GRAMMARS
        for sampling in SAMPLINGS
    ]
    return [*structured, ChoiceRules(0, temperature=1.0, seed=9), None]


@functools.cache
def structured_model(seed: int = 0) -> LoadedModel:
    """A random model whose tokenizer is `grammar_oracle.mixed_tokenizer`."""
    model = tiny_model("llama-gqa", seed, VOCAB_SIZE)
    reading = TokenizerReading(assets(), NUM_TOKENS, "", STOP)
    return wrap_model(model, ModelSettings("structured"), reading)


def structured_runner(layout, num_slots: int, seed: int = 0) -> ModelRunner:
    loaded = structured_model(seed)
    return ModelRunner(
        loaded,
        layout=layout,
        num_slots=num_slots,
        capacity=CAPACITY,
        open_matcher=compiler(seed).open,
    )


@functools.cache
def compiler(seed: int = 0) -> GrammarCompiler:
    loaded = structured_model(seed)
    return GrammarCompiler(loaded.tokenizer, loaded.facts)


def text_of(tokens: Sequence[int]) -> str:
    """What was generated, a stop token left out."""
    return b"".join(token_bytes()[token] for token in tokens if token != STOP).decode()


@dataclass
class Row:
    """One sequence in a slot."""

    slot: int
    rules: ChoiceRules | None
    prompt: tuple[int, ...]
    choosing: Choosing | None = None
    new: list[int] = field(default_factory=list)
    kv: int = 0
    num_accepted: int = 0
    is_finished: bool = False

    @property
    def log(self) -> tuple[int, ...]:
        return (*self.prompt, *self.new)

    def open(self, runner: ModelRunner) -> None:
        """Be at a worker that knows nothing of it yet."""
        self.kv = 0
        if self.rules is not None:
            rules = replace(self.rules, num_prompt_tokens=len(self.prompt))
            self.choosing = runner.open_choosing(rules)

    def input(self, drafts: Sequence[int]) -> RowInput:
        tokens = (*self.log[self.kv :], *drafts)
        history = self.log[: self.kv]
        return RowInput(self.slot, self.kv, tokens, len(drafts) + 1, self.choosing, history)

    def commit(self, drafts: Sequence[int], choices: Sequence[int]) -> None:
        decision = accept(tuple(drafts[: len(choices) - 1]), choices)
        block = cut_block(
            (*drafts[: decision.num_accepted], decision.bonus_token),
            stop_token_ids=(STOP,),
            num_remaining=MAX_TOKENS - len(self.new),
        )
        self.kv = len(self.log) + min(decision.num_accepted, len(block.tokens) - 1)
        self.new += block.tokens
        self.num_accepted += decision.num_accepted
        self.is_finished = block.finish is not None


Propose = Callable[[Row, int], Sequence[int]]


def run(runner: ModelRunner, rows: Sequence[Row], propose: Propose, num_drafts: int) -> PassOutput:
    """One round of unfinished rows."""
    active = [row for row in rows if not row.is_finished]
    drafts = [
        tuple(propose(row, speculation_cap(num_drafts, MAX_TOKENS - len(row.new))))
        for row in active
    ]
    output = runner.forward([row.input(d) for row, d in zip(active, drafts, strict=True)])
    assert not output.stuck_rows | output.failed_rows
    for row, draft, choices in zip(active, drafts, output.choices, strict=True):
        row.commit(draft, choices)
    return output


def make_rows(all_of: Sequence[ChoiceRules | None]) -> list[Row]:
    draw = random.Random(7)
    return [
        Row(slot, rules, tuple(draw.randrange(3, NUM_TOKENS) for _ in range(draw.randint(1, 9))))
        for slot, rules in enumerate(all_of)
    ]


@functools.cache
def plain_outputs() -> tuple[tuple[int, ...], ...]:
    """Each row of `all_rules` alone, without drafts."""
    outputs = []
    for row in make_rows(all_rules()):
        runner = structured_runner(KvLayoutName.SLOTS, len(all_rules()))
        row.open(runner)
        while not row.is_finished:
            run(runner, [row], lambda row, k: (), 0)
        outputs.append(tuple(row.new))
    return tuple(outputs)
