"""Training text in units: each is made whole, from its own seed, and written once.

A unit holds conversations of one user turn and one answer. A run that was interrupted makes the
units that are missing, and they are the ones it would have made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from exspec.core.choosing import ChoiceRules, derive_seed
from exspec.distill.chats import Chats
from exspec.distill.completions import Job, complete
from exspec.distill.prompts import SampledPrompts
from exspec.engine.model_runner import ModelRunner

MAX_UNIT_CONVERSATIONS = 1024
_SAMPLED_SHARE = 0.2
"""Of the answers are drawn at `_TEMPERATURE`: the draft also meets text that is not the likeliest.

What the draft learns is the target's greedy choice, after these tokens as after any.
"""
_TEMPERATURE = 0.8


@dataclass(frozen=True, slots=True)
class Conversation:
    """Prompt and answer as one list of tokens; `answer_start` is the length of the prompt.

    The user's own text begins about at `text_start` (at least 1): what stands before is the same in
    all prompts.
    """

    tokens: tuple[int, ...]
    text_start: int
    answer_start: int
    is_greedy: bool
    task: str

    @property
    def num_answer_tokens(self) -> int:
        """Generated ones."""
        return len(self.tokens) - self.answer_start


@dataclass(frozen=True, slots=True)
class TextBounds:
    """Of a unit's conversations: how many, and the most tokens of a prompt and of an answer."""

    num_conversations: int
    max_prompt_tokens: int
    max_answer_tokens: int


class TextMaker:
    """Makes units with one runner over the target."""

    def __init__(
        self,
        runner: ModelRunner,
        chats: Chats,
        bounds: TextBounds,
        seed: int,
        file_prompts: Sequence[str] = (),
    ) -> None:
        """Prompts are sampled from the target, or those of `file_prompts` that fit, in turn."""
        self._runner = runner
        self._chats = chats
        self._seed = seed
        self._bounds = bounds
        self._stop_ids = frozenset(runner.facts.stop_token_ids)
        before = chats.turn_parts()[0] if chats.has_template else ""
        self._text_start = max(1, len(chats.encode(before)))
        self._file_prompts = [text for text in file_prompts if self._fits(chats.prompt(text))]
        self._sampled = None if file_prompts else SampledPrompts(runner, chats, self._stop_ids)

    def make(self, unit: int, on_tokens: Callable[[int], None]) -> list[Conversation]:
        """The conversations of a unit; `on_tokens` hears of every pass how many it generated."""
        seed = derive_seed(self._seed, unit + 1)
        named = self._prompts(unit, seed, on_tokens)
        prompts = [(name, self._chats.prompt(text)) for name, text in named]
        prompts = [(name, ids) for name, ids in prompts if self._fits(ids)]
        jobs = [self._job(ids, index, seed) for index, (_, ids) in enumerate(prompts)]
        answers = complete(self._runner, jobs, on_tokens)
        return [
            Conversation(
                (*ids, *answer), min(self._text_start, len(ids)), len(ids), job.rules is None, name
            )
            for (name, ids), job, answer in zip(prompts, jobs, answers, strict=True)
            if answer
        ]

    def _fits(self, ids: tuple[int, ...]) -> bool:
        """Whether a prompt is short enough, and of tokens that the target has."""
        is_short = 0 < len(ids) <= self._bounds.max_prompt_tokens
        return is_short and max(ids) < self._runner.facts.vocab_size

    def _prompts(
        self, unit: int, seed: int, on_tokens: Callable[[int], None]
    ) -> list[tuple[str, str]]:
        if self._sampled is not None:
            return self._sampled.make(self._bounds.num_conversations, seed, on_tokens)
        first = unit * self._bounds.num_conversations
        number = len(self._file_prompts)
        return [
            ("file", self._file_prompts[(first + i) % number])
            for i in range(self._bounds.num_conversations if number else 0)
        ]

    def _job(self, prompt: tuple[int, ...], index: int, seed: int) -> Job:
        is_sampled = index % round(1 / _SAMPLED_SHARE) == 0
        rules = ChoiceRules(
            len(prompt), temperature=_TEMPERATURE, seed=derive_seed(seed, 1_000_000 + index)
        )
        return Job(
            prompt, self._bounds.max_answer_tokens, self._stop_ids, rules if is_sampled else None
        )
