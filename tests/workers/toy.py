"""A language model one can compute by hand, behind the runner's interface, that checks its caller.

It keeps the tokens of every slot, as a KV cache keeps their keys and values: a pass that starts at
the wrong place sees the wrong context and chooses other tokens, and is noted as a violation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from zlib import crc32

from toy_choices import VOCAB, Language, ToyChoosing, toy_choice, toy_logprobs

from exspec.core.choosing import ChoiceRules, TokenLogprobs
from exspec.core.errors import InvalidRequestError
from exspec.core.models import ModelFacts
from exspec.engine.model_runner import PassOutput, RowInput


def target_language(context: Sequence[int]) -> int:
    """The next token: any function of the whole context will do."""
    return 5 + crc32(bytes(token % 251 for token in context)) % (VOCAB - 5)


def draft_language(context: Sequence[int]) -> int:
    """Agrees with the target in most places, and goes on from its own mistakes."""
    choice = target_language(context)
    return choice if crc32(bytes((choice, len(context) % 256))) % 4 else 5 + choice % 50


def noise_language(context: Sequence[int]) -> int:
    """Never agrees with the target."""
    return 5 + (target_language(context) - 4) % (VOCAB - 5)


def continuation(
    prompt: Sequence[int],
    num_tokens: int,
    language: Language = target_language,
    rules: ChoiceRules | None = None,
) -> tuple[int, ...]:
    """Plain decoding, token by token."""
    log = list(prompt)
    for _ in range(num_tokens):
        choice = toy_choice(language, log, rules)
        assert choice is not None
        log.append(choice)
    return tuple(log[len(prompt) :])


def reported(
    prompt: Sequence[int], tokens: Sequence[int], num_top: int
) -> tuple[TokenLogprobs, ...]:
    """The logprobs of tokens that follow a prompt."""
    log = (*prompt, *tokens)
    places = range(len(prompt), len(log))
    return tuple(toy_logprobs(log[:i], log[i], num_top) for i in places)


def facts(name: str = "toy", **changes: object) -> ModelFacts:
    """A model's announcement."""
    values: dict[str, object] = {
        "name": name,
        "architecture": "ToyForCausalLM",
        "vocab_size": VOCAB,
        "tokenizer_size": VOCAB,
        "tokenizer_sha256": "a" * 64,
        "max_length": 256,
        "stop_token_ids": (),
        "dtype": "float64",
        "device": "cpu",
        "num_parameters": 1,
        "fingerprint": "f" * 16,
    }
    return ModelFacts(**(values | changes))  # type: ignore[arg-type]


class ToyRunner:
    """`forward`, `release` and `open_choosing` as the engine's runner has them."""

    def __init__(
        self,
        language: Language = target_language,
        *,
        num_slots: int = 8,
        capacity: int = 256,
        vocab_size: int = VOCAB,
    ) -> None:
        self.facts = facts(vocab_size=vocab_size, max_length=capacity)
        self.num_slots = num_slots
        self.capacity = capacity
        self.passes: list[list[RowInput]] = []
        self.violations: list[str] = []
        self.failures: list[Exception] = []
        """Raised by the next passes, one each."""
        self.opened: list[ChoiceRules] = []
        self.entered = threading.Event()
        """Set when a pass begins."""
        self.gate = threading.Event()
        """Cleared by tests to hold passes up."""
        self.gate.set()
        self.on_pass: Callable[[], None] = lambda: None
        self.on_release: Callable[[], None] = lambda: None
        self.sureness: Callable[[Sequence[int]], float] = lambda context: 0.5
        """How likely it thinks its choice after a context is."""
        self._language = language
        self._slots: list[list[int]] = [[] for _ in range(num_slots)]

    @property
    def num_fed(self) -> list[int]:
        """Tokens fed in each pass."""
        return [sum(len(row.tokens) for row in rows) for rows in self.passes]

    def forward(self, rows: list[RowInput]) -> PassOutput:
        """One pass; every row's choices after its last `num_choices` tokens."""
        self.entered.set()
        self.on_pass()
        assert self.gate.wait(timeout=30)
        if self.failures:
            for row in rows:  # what the slots of a failed pass hold is unknown
                self._slots[row.slot] = []
            raise self.failures.pop(0)
        self._check(rows)
        self.passes.append(list(rows))
        choices = tuple(self._row(row) for row in rows)
        stuck = (i for i, row in enumerate(rows) if row.num_choices and not choices[i])
        return PassOutput(
            choices=choices,
            align_seconds=0.0,
            forward_seconds=0.001,
            num_moved_rows=0,
            num_moved_bytes=0,
            stuck_rows=frozenset(stuck),
            logprobs=tuple(map(self._logprobs, rows, choices)),
            scored=tuple(map(self._scored, rows)),
            chances=tuple(map(self._chances, rows)),
        )

    def open_choosing(self, rules: ChoiceRules) -> ToyChoosing:
        """Refuses what the vocabulary does not have, and grammars."""
        if rules.grammar is not None:
            raise InvalidRequestError("toys know no grammar", field="structured")
        named = (
            ("logit_bias", (token for token, _ in rules.logit_bias)),
            ("allowed_token_ids", rules.allowed_token_ids),
            ("banned_token_ids", rules.banned_token_ids),
            ("bad_words", (token for word in rules.bad_words for token in word)),
        )
        for field, tokens in named:
            if any(token >= self.facts.vocab_size for token in tokens):
                raise InvalidRequestError(f"{field}: a token id is not known", field=field)
        self.opened.append(rules)
        return ToyChoosing(rules)

    def release(self, slot: int) -> None:
        """The slot's memory is as good as empty."""
        self._slots[slot] = []
        self.on_release()

    def _row(self, row: RowInput) -> tuple[int, ...]:
        context = self._slots[row.slot][: row.start] + list(row.tokens)
        self._slots[row.slot] = context
        rules = None if row.choosing is None else row.choosing.rules
        choices: list[int] = []
        for end in range(len(context) - row.num_choices + 1, len(context) + 1):
            choice = toy_choice(self._language, context[:end], rules)
            if choice is None:
                break
            choices.append(choice)
        return tuple(choices)

    def _chances(self, row: RowInput) -> tuple[float, ...]:
        if not row.wants_chance or not row.num_choices:
            return ()
        context = self._slots[row.slot]
        choice = toy_choice(self._language, context, None)
        sure = self.sureness(context)
        rest = (1 - sure) / (self.facts.vocab_size - 1)
        return (sure, *(sure if rival == choice else rest for rival in row.rivals))

    def _logprobs(self, row: RowInput, choices: Sequence[int]) -> tuple[TokenLogprobs, ...]:
        if row.choosing is None or row.choosing.rules.num_logprobs is None:
            return ()
        context, num_top = self._slots[row.slot], row.choosing.rules.num_logprobs
        first = len(context) - row.num_choices + 1
        return tuple(
            toy_logprobs(context[: first + i], choice, num_top) for i, choice in enumerate(choices)
        )

    def _scored(self, row: RowInput) -> tuple[TokenLogprobs, ...]:
        num_top = (row.choosing.rules.num_prompt_logprobs if row.choosing else None) or 0
        context = self._slots[row.slot]
        return tuple(
            toy_logprobs(context[: row.start + i + 1], token, num_top)
            for i, token in enumerate(row.scored)
        )

    def _check(self, rows: list[RowInput]) -> None:
        if len({row.slot for row in rows}) != len(rows) or not rows:
            self.violations.append(f"no rows, or a slot twice: {rows}")
        for row in rows:
            held = self._slots[row.slot]
            if row.start > len(held) or not row.tokens or row.num_choices > len(row.tokens):
                self.violations.append(f"{len(held)} tokens are held: {row}")
            if row.start + len(row.tokens) > self.capacity:
                self.violations.append(f"beyond the capacity: {row}")
            if not all(0 <= token < self.facts.vocab_size for token in row.tokens):
                self.violations.append(f"outside the vocabulary: {row}")
            needs_history = row.choosing and row.choosing.rules.needs_history
            if needs_history and list(row.history) != held[: row.start]:
                self.violations.append(f"{held[: row.start]} came before: {row}")
            if any(map(int.__ne__, row.tokens[1:], row.scored)):
                self.violations.append(f"what is scored does not follow: {row}")
            if len(row.scored) > len(row.tokens):
                self.violations.append(f"more is scored than fed: {row}")
