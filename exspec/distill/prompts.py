"""Where the user turns of the training text come from: the target itself, or a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from exspec.core.choosing import ChoiceRules, derive_seed
from exspec.core.errors import InvalidRequestError
from exspec.distill.chats import Chats
from exspec.distill.completions import Job, complete
from exspec.distill.openers import Beginning, draw_turn
from exspec.engine.model_runner import ModelRunner

_TEMPERATURE = 0.9
_TOP_P = 0.97


class SampledPrompts:
    """User turns the target writes itself: it goes on after a beginning as if it were the user."""

    def __init__(self, runner: ModelRunner, chats: Chats, stop_ids: frozenset[int]) -> None:
        self._runner = runner
        self._chats = chats
        self._before, after = chats.turn_parts()
        first_after = chats.encode(after)[:1]
        self._stop_ids = stop_ids | frozenset(first_after)

    def make(
        self, number: int, seed: int, on_tokens: Callable[[int], None]
    ) -> list[tuple[str, str]]:
        """`number` pairs of task and user text; the same for the same seed. None is empty."""
        turns = [draw_turn(Random(f"{seed}-{index}")) for index in range(number)]
        texts = [""] * number
        for stage in range(max(len(beginnings) for _, beginnings in turns)):
            active = [i for i, (_, beginnings) in enumerate(turns) if len(beginnings) > stage]
            beginnings = [turns[i][1][stage] for i in active]
            grown = [texts[i] + b.text for i, b in zip(active, beginnings, strict=True)]
            new = self._go_on(grown, beginnings, derive_seed(seed, stage), on_tokens)
            for i, text in zip(active, new, strict=True):
                texts[i] = text
        kept = [(name, text.strip()) for (name, _), text in zip(turns, texts, strict=True)]
        return [(name, text) for name, text in kept if text]

    def _go_on(
        self,
        texts: Sequence[str],
        beginnings: Sequence[Beginning],
        seed: int,
        on_tokens: Callable[[int], None],
    ) -> list[str]:
        """Every text with what the target wrote after it."""
        jobs: list[Job] = []
        for index, (text, beginning) in enumerate(zip(texts, beginnings, strict=True)):
            tokens = self._chats.encode(self._before + text)
            rules = ChoiceRules(
                len(tokens),
                temperature=_TEMPERATURE,
                top_p=_TOP_P,
                seed=derive_seed(seed, index + 1),
            )
            jobs.append(Job(tokens, beginning.max_tokens, self._stop_ids, rules))
        new = complete(self._runner, jobs, on_tokens)
        return [text + self._written(tokens) for text, tokens in zip(texts, new, strict=True)]

    def _written(self, tokens: tuple[int, ...]) -> str:
        """A turn that did not come to its end is cut after its last sentence, if it has one."""
        if tokens and tokens[-1] in self._stop_ids:
            return self._chats.decode(tokens[:-1])
        text = self._chats.decode(tokens)
        end = max(text.rfind(mark) for mark in (". ", ".\n", "? ", "! ")) + 1
        return text[:end] or text


def read_prompts(path: Path) -> tuple[str, ...]:
    """The prompts of a file: a prompt a line, or JSON lines with a text named `prompt`.

    Raises:
        InvalidRequestError: the file cannot be read or holds none; the line is named.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"{path} cannot be read: {error}", field="prompts") from error
    lines = [(n, line) for n, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise InvalidRequestError(f"{path} holds no prompt", field="prompts")
    if path.suffix in {".jsonl", ".json"}:
        return tuple(_prompt_of(path, number, line) for number, line in lines)
    return tuple(line.strip() for _, line in lines)


def _prompt_of(path: Path, number: int, line: str) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(
            f"{path}, line {number}: not JSON: {error}", field="prompts"
        ) from error
    prompt = value.get("prompt") if isinstance(value, dict) else None
    if not isinstance(prompt, str) or not prompt.strip() or not _is_unicode(prompt):
        raise InvalidRequestError(
            f"{path}, line {number}: 'prompt' must be there and be text", field="prompts"
        )
    return prompt


def _is_unicode(text: str) -> bool:
    """Whether no half of a surrogate pair is in it, which JSON can name and no tokenizer takes."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)
