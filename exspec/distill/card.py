"""The model card of a draft: what it is, how it was made, how well it does. Text only.

Paths appear as they were typed, and nowhere else: a card is read on other machines.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from exspec.distill.plan import DistillPlan
from exspec.engine.gguf_reading import open_gguf
from exspec.engine.sources import TARGET_ALIAS, ModelSource, find_source
from exspec.runtime.files import write_whole

if TYPE_CHECKING:
    from exspec.distill.forecast import Forecast
    from exspec.distill.imitation import HeldOut

CARD_FILE = "README.md"
_ALIASED = {TARGET_ALIAS: "HuggingFaceTB/SmolLM2-135M-Instruct"}
_OPTIONS = {
    "num_layers": "--layers",
    "hidden_size": "--hidden",
    "num_tokens": "--tokens",
    "num_epochs": "--epochs",
    "num_labels": "--labels",
}
"""Options that are not named as their field is."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What is known of a target: its name, where the hub has it, its license; "" if unknown."""

    name: str
    base_model: str = ""
    license: str = ""


@dataclass(frozen=True, slots=True)
class Making:
    """What went into a draft: text, training steps, and the time of all runs together.

    Of the conversations' answers `num_greedy` are greedy, the others drawn.
    """

    num_conversations: int
    num_greedy: int
    num_answer_tokens: int
    num_steps: int
    num_runs: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Card:
    """All that a card says. `held_out` is the draft as trained, `as_stored` as its files hold it.

    `vocabulary_size` counts the tokens drafted over, `files` are the draft's.
    """

    plan: DistillPlan
    forecast: Forecast
    origin: Origin
    making: Making
    vocabulary_size: int
    files: tuple[Path, ...]
    held_out: HeldOut | None = None
    as_stored: HeldOut | None = None


def write_card(out: Path, card: Card) -> None:
    """Write `README.md` into a draft's directory."""
    write_whole(out / CARD_FILE, render_card(card).encode())


def render_card(card: Card) -> str:
    """The card as Markdown with front matter."""
    parts = (
        _front_matter(card.origin),
        _opening(card),
        _how_it_was_made(card),
        _how_well_it_does(card),
        _how_to_serve_it(card),
        _limits(card),
    )
    return "\n".join(parts)


def command_of(plan: DistillPlan) -> str:
    """The command that makes this draft: every value that is not the default. No time limit."""
    words = ["exspec", "distill"]
    for field in fields(plan):
        value = getattr(plan, field.name)
        if field.name == "minutes" or value == field.default:
            continue
        if field.name == "num_layers" and plan.from_layers:
            continue
        option = _OPTIONS.get(field.name) or "--" + field.name.replace("_", "-")
        words += [option, ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]
    return shlex.join(words)


def origin_of(plan: DistillPlan) -> Origin:
    """What the target's own files say of it."""
    source = find_source(plan.target, plan.gguf_file, plan.revision)
    known_as = _ALIASED.get(plan.target, "")
    if source.gguf_file is not None:
        return _gguf_origin(source, known_as)
    if source.is_local:
        folder = Path(source.location)
        return Origin(folder.resolve().name, "", _license_in(folder / CARD_FILE))
    return Origin(plan.target, plan.target)


def _gguf_origin(source: ModelSource, known_as: str) -> Origin:
    """From the file's metadata."""
    stated = open_gguf(Path(source.location) / str(source.gguf_file)).fields
    license_field, name_field = stated.get("general.license"), stated.get("general.name")
    name = known_as or (name_field.contents() if name_field else Path(str(source.gguf_file)).stem)
    return Origin(name, known_as, license_field.contents() if license_field else "")


def _license_in(card: Path) -> str:
    """The license that a card's front matter names."""
    try:
        text = card.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    front = re.match(r"---\n(.*?)\n---", text, re.DOTALL)
    named = re.search(r"^license:\s*([\w.\-]+)\s*$", front[1], re.MULTILINE) if front else None
    return named[1] if named else ""


def _front_matter(origin: Origin) -> str:
    lines = ["---"]
    if origin.license:
        lines.append(f"license: {origin.license}")
    if origin.base_model:
        lines.append(f"base_model: {origin.base_model}")
    return "\n".join([*lines, "pipeline_tag: text-generation", "---"])


def _opening(card: Card) -> str:
    plan, forecast = card.plan, card.forecast
    size = sum(path.stat().st_size for path in card.files)
    stored = ", ".join(f"`{path.name}`" for path in card.files if _holds_weights(path))
    rows = [
        ("Weights", f"{stored}; all files {size / 1e6:.1f} MB"),
        ("Architecture", f"{forecast.architecture}, {_layers(card)}, width {forecast.width}"),
        ("Parameters", f"{forecast.num_parameters:,}, of them trained {forecast.num_trained:,}"),
        ("Tokenizer", "the target's own"),
        ("Drafts over", f"{card.vocabulary_size:,} tokens" + _vocabulary_note(card)),
    ]
    if card.origin.license:
        rows.append(("License", f"{card.origin.license}, as the target"))
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    text = _paragraph(
        f"A draft model for speculative decoding with {card.origin.name} as the target. It is not "
        "meant to be talked to: it proposes tokens, and the target decides."
    )
    return f"# {plan.out.resolve().name}\n\n{text}\n\n| | |\n|---|---|\n{table}\n"


def _holds_weights(path: Path) -> bool:
    return path.suffix in {".safetensors", ".gguf"}


def _layers(card: Card) -> str:
    number = len(card.forecast.layers)
    return f"{number} layer{'s' if number > 1 else ''}"


def _vocabulary_note(card: Card) -> str:
    has_list = any(path.name == "draft_vocab.json" for path in card.files)
    return " (`draft_vocab.json`), the ones the target writes most" if has_list else ", all"


def _how_it_was_made(card: Card) -> str:
    plan, made = card.plan, card.making
    prompts = (
        "user turns sampled from the target's own chat template"
        if plan.prompts is None
        else "prompts from a file"
    )
    labels = (
        "on the target's choice at each position"
        if plan.num_labels == 1
        else "half on the target's choice at each position and half on its "
        f"{plan.num_labels} likeliest tokens"
    )
    text = _paragraph(
        _start(card),
        f"All training text was written by the target: {made.num_conversations:,} conversations "
        f"with {made.num_answer_tokens:,} answer tokens, {prompts}, {made.num_greedy:,} answers "
        "greedy and the others drawn at a temperature.",
        f"Trained {plan.num_epochs:g} times on each in {made.num_steps:,} steps: cross-entropy, "
        f"{labels}; AdamW, learning rate {plan.learning_rate:g} with cosine decay.",
        _time(made),
    )
    return f"## How it was made\n\n{text}\n\n```\n{command_of(plan)}\n```\n"


def _start(card: Card) -> str:
    layers = card.forecast.layers
    if card.plan.start_from is not None:
        return (
            f"{_layers(card).capitalize()} of {card.plan.start_from}, a draft for the same target, "
            "were trained further."
        )
    if card.forecast.is_narrow:
        return (
            f"{_layers(card).capitalize()} drawn at random under the target's embedding, projected "
            f"on {card.forecast.width} directions."
        )
    listed = ", ".join(map(str, layers))
    return (
        f"Layer{'s' if len(layers) > 1 else ''} {listed} of the target's "
        f"{card.forecast.num_target_layers} were the start, with its embedding and head, which "
        "stay as they are."
    )


def _time(made: Making) -> str:
    runs = "one run" if made.num_runs == 1 else f"{made.num_runs} runs"
    return f"{made.seconds:,.0f} seconds in {runs}."


def _how_well_it_does(card: Card) -> str:
    measured = [
        (name, found)
        for name, found in (("as trained", card.held_out), ("as stored", card.as_stored))
        if found is not None
    ]
    if not measured:
        return "## How well it does\n\nNot measured.\n"
    number = len(measured[0][1].by_position)
    head = "".join(f" {i + 1} |" for i in range(number))
    rows = "\n".join(
        f"| {name} | {found.match_rate:.1%} |"
        + "".join(f" {share:.1%} |" for share in found.by_position)
        + f" {found.acceptance_length:.2f} |"
        for name, found in measured
    )
    text = _paragraph(
        f"On {measured[0][1].num_positions:,} positions of the target's answers that it was not "
        "trained on, greedy: how often its first choice is the target's; how often the first 1 to "
        f"{number} drafts of a round are all accepted; and the acceptance length, tokens per round "
        f"at K = {number} with the target's own one."
    )
    return (
        f"## How well it does\n\n{text}\n\n"
        f"| | match |{head} acceptance length |\n|---|---|{'---|' * number}---|\n{rows}\n"
    )


def _how_to_serve_it(card: Card) -> str:
    words = ["exspec", "up", "--model", card.plan.target, "--draft-model", str(card.plan.out)]
    return f"## How to serve it\n\n```\n{shlex.join(words)}\n```\n"


def _limits(card: Card) -> str:
    text = _paragraph(
        f"It imitates {card.origin.name} alone. The held-out text is of the same kind as the "
        "training text; on other prompts fewer drafts are accepted. What is generated is the "
        "target's own, whatever the draft proposes."
    )
    return f"## Limits\n\n{text}\n"


def _paragraph(*sentences: str) -> str:
    """Sentences in lines that can be read in a terminal."""
    return textwrap.fill(" ".join(sentences), 100, break_long_words=False, break_on_hyphens=False)
