"""From a plan to a draft model: text, labels, training, export. Each stage goes on where it was.

Only the order of things is here; what a stage does is in the module named for it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel

from exspec.core.errors import InvalidRequestError
from exspec.distill.chats import Chats
from exspec.distill.export import export_draft, read_draft, round_frozen
from exspec.distill.imitation import HeldOut, Imitator, is_bfloat16_fast, measure
from exspec.distill.labels import label
from exspec.distill.plan import DistillPlan
from exspec.distill.prompts import read_prompts
from exspec.distill.samples import Sample, split_samples
from exspec.distill.student import build_student
from exspec.distill.texts import MAX_UNIT_CONVERSATIONS, TextBounds, TextMaker
from exspec.distill.training import Course, Trainer
from exspec.distill.units import Unit, UnitStore, make_unit
from exspec.distill.vocabulary import choose_vocabulary, essential_tokens
from exspec.engine.kv.layout import KvLayoutName
from exspec.engine.loaded import LoadedModel, kv_shape_of
from exspec.engine.loading import ModelSettings, load_model
from exspec.engine.model_runner import ModelRunner
from exspec.engine.sources import find_source
from exspec.runtime.clock import Clock, monotonic

TEXT, TRAINING, EXPORT = "text", "training", "export"
"""Names of the stages, for `Watch`."""

_MAX_ROWS = 512
_KV_BYTES = 7 << 30
"""At most this much memory is for the KV of the rows that are written at once."""
_MEASURE_EVERY = 400
"""Steps."""


class Watch(Protocol):
    """Who looks on. Called from the thread that works; must not block."""

    def stage(self, name: str, total: int, done: int) -> None:
        """A stage begins: `done` of `total` were done before (answer tokens; samples; files)."""
        ...

    def advance(self, number: int) -> None:
        """So many more are done."""
        ...

    def note(self, line: str) -> None:
        """Something worth reading happened."""
        ...

    def should_stop(self) -> bool:
        """Whether to end at the next step; all that is done is kept."""
        ...


@dataclass(frozen=True, slots=True)
class DistillReport:
    """What came of a run. What a stage finds is None, 0 or empty if the run ended before it.

    `num_conversations`, the greedy ones among them, and `num_answer_tokens` count the training
    text, `num_steps` the training. `held_out` measures the student as trained, `as_stored` as its
    files hold it.
    """

    num_conversations: int
    num_greedy: int
    num_answer_tokens: int
    is_complete: bool = False
    num_steps: int = 0
    vocabulary_size: int = 0
    num_parameters: int = 0
    held_out: HeldOut | None = None
    as_stored: HeldOut | None = None
    files: tuple[Path, ...] = ()


def distill(plan: DistillPlan, watch: Watch, clock: Clock = monotonic) -> DistillReport:
    """Carry a plan out, or go on with it; `plan.minutes` after the start it pauses.

    Raises:
        ExspecError: whatever stands in the way, in the project's terms; what was done is kept.
    """
    return _Distillation(plan, watch, clock).run()


class _Distillation:
    """One run of a plan. Owns the target while it is needed, and the units."""

    def __init__(self, plan: DistillPlan, watch: Watch, clock: Clock) -> None:
        self._plan = plan
        self._watch = watch
        self._clock = clock
        self._ends = None if plan.minutes is None else clock() + 60 * plan.minutes
        self._source = find_source(plan.target, plan.gguf_file, plan.revision)
        self._chats = Chats(self._source)
        self._store = UnitStore(plan.work_dir)
        self._units: list[Unit] = []

    def run(self) -> DistillReport:
        """All stages."""
        self._read_units()
        if self._num_tokens < self._plan.num_tokens:
            self._write_units()
        if self._num_tokens < self._plan.num_tokens:
            return self._paused()
        return self._train()

    @property
    def _num_tokens(self) -> int:
        return sum(unit.num_answer_tokens for unit in self._units)

    def _should_stop(self) -> bool:
        is_late = self._ends is not None and self._clock() >= self._ends
        return is_late or self._watch.should_stop()

    def _read_units(self) -> None:
        """Those of earlier runs."""
        while self._store.has(len(self._units)) and self._num_tokens < self._plan.num_tokens:
            self._units.append(self._store.read(len(self._units)))

    def _write_units(self) -> None:
        """The text that is missing."""
        plan = self._plan
        self._watch.stage(TEXT, plan.num_tokens, self._num_tokens)
        loaded = self._load(plan.dtype)
        self._vocabulary(torch.zeros(loaded.facts.vocab_size, dtype=torch.long), loaded)
        maker = self._text_maker(loaded)
        while self._num_tokens < plan.num_tokens and not self._should_stop():
            with suppress(_StoppedError):
                self._units.append(self._write_unit(maker, loaded))

    def _write_unit(self, maker: TextMaker, loaded: LoadedModel) -> Unit:
        number = len(self._units)
        conversations = maker.make(number, self._check_stop)
        if not conversations:
            raise InvalidRequestError(
                "the target answers none of the prompts, or none fits max_prompt_tokens and "
                "its context",
                field="target",
            )
        labels = label(loaded.model, conversations, self._plan.num_labels, self._check_stop)
        unit = make_unit(conversations, labels)
        self._store.write(number, unit)
        self._watch.advance(unit.num_answer_tokens)
        return unit

    def _check_stop(self, num_tokens: int) -> None:  # noqa: ARG002
        """Called between passes; what is not yet a whole unit is given up."""
        if self._should_stop():
            raise _StoppedError

    def _text_maker(self, loaded: LoadedModel) -> TextMaker:
        plan = self._plan
        capacity = min(plan.max_prompt_tokens + plan.max_answer_tokens, loaded.facts.max_length)
        prompts = () if plan.prompts is None else read_prompts(plan.prompts)
        shape = kv_shape_of(loaded.model, loaded.attention, 1, capacity)
        width = shape.num_kv_heads * (shape.key_dim + shape.value_dim)
        bytes_per_row = shape.num_layers * capacity * width * loaded.model.dtype.itemsize
        unit_size = plan.num_tokens // (4 * plan.max_answer_tokens)
        unit_size = min(MAX_UNIT_CONVERSATIONS, max(16, unit_size))
        runner = ModelRunner(
            loaded,
            layout=KvLayoutName.SLOTS,
            num_slots=max(1, min(_MAX_ROWS, unit_size, _KV_BYTES // bytes_per_row)),
            capacity=capacity,
        )
        bounds = TextBounds(
            unit_size, min(plan.max_prompt_tokens, capacity - 1), plan.max_answer_tokens
        )
        return TextMaker(runner, self._chats, bounds, plan.seed, prompts)

    def _load(self, dtype: str) -> LoadedModel:
        plan = self._plan
        return load_model(
            ModelSettings(
                plan.target, plan.revision, plan.gguf_file, _dtype(dtype, plan), plan.device
            )
        )

    def _vocabulary(self, counts: torch.Tensor, loaded: LoadedModel) -> tuple[int, ...]:
        """The tokens to draft over. Called before there are counts, too: is there room for all?"""
        always = essential_tokens(loaded.model, self._chats.tokenizer)
        return choose_vocabulary(counts, self._plan.draft_vocab, always)

    def _start(self) -> PreTrainedModel | None:
        """The draft to train further."""
        if self._plan.start_from is None:
            return None
        return load_model(ModelSettings(self._plan.start_from, dtype="float32", device="cpu")).model

    def _train(self) -> DistillReport:
        """A student of the target, on all units."""
        plan, watch = self._plan, self._watch
        samples, held_out = split_samples(self._units)
        loaded = self._load("float32")
        vocabulary = self._vocabulary(_counts(samples, loaded.facts.vocab_size), loaded)
        student: Any = build_student(loaded.model, plan, self._start())
        round_frozen(student, self._source, plan)
        student.to(loaded.model.device)
        del loaded
        gc.collect()
        trainer = Trainer(
            Imitator(student, vocabulary),
            samples,
            Course(plan.num_epochs, plan.learning_rate, plan.seed),
            plan.work_dir / "training.pt",
        )
        watch.stage(TRAINING, trainer.num_total, trainer.progress.num_samples)
        is_done = trainer.run(self._should_stop, _teller(trainer, held_out, watch), self._clock)
        report = replace(
            self._paused(),
            is_complete=is_done,
            num_steps=trainer.progress.num_steps,
            vocabulary_size=len(vocabulary),
            num_parameters=sum(part.numel() for part in student.parameters()),
        )
        if not is_done:
            return report
        measured = replace(report, held_out=trainer.measure(held_out) if held_out else None)
        return self._export(measured, student, vocabulary, held_out)

    def _export(
        self,
        report: DistillReport,
        student: PreTrainedModel,
        vocabulary: tuple[int, ...],
        held_out: list[Sample],
    ) -> DistillReport:
        """Write the student, and measure what was written."""
        self._watch.stage(EXPORT, 1, 0)
        device = student.device
        files = export_draft(student.cpu(), self._source, self._plan, vocabulary)
        stored: Any = read_draft(files, type(student))
        imitator = Imitator(stored.to(device), vocabulary)
        found = measure(imitator, held_out) if held_out else None
        self._watch.advance(1)
        return replace(report, files=files, as_stored=found)

    def _paused(self) -> DistillReport:
        """What is there before the training."""
        return DistillReport(
            num_conversations=sum(len(unit.lengths) for unit in self._units),
            num_greedy=sum(int(unit.is_greedy.sum()) for unit in self._units),
            num_answer_tokens=self._num_tokens,
        )


class _StoppedError(Exception):
    """Leaves a unit in the middle. Never seen outside."""


def _teller(trainer: Trainer, held_out: list[Sample], watch: Watch) -> Callable[[int, float], None]:
    """Advances the watch at every step and measures now and then."""

    def tell(num_samples: int, loss: float) -> None:
        watch.advance(num_samples)
        if trainer.progress.num_steps % _MEASURE_EVERY == 0:
            found = trainer.measure(held_out)
            watch.note(
                f"step {trainer.progress.num_steps}: loss {loss:.3f}, held-out match "
                f"{found.match_rate:.1%}, {found.acceptance_length:.2f} tokens per round"
            )

    return tell


def _counts(samples: list[Sample], vocab_size: int) -> torch.Tensor:
    """How often the target chose each token, `[vocab_size]`."""
    counts = torch.zeros(vocab_size, dtype=torch.long)
    for sample in samples:
        chosen = sample.label_ids[:, 0].long()
        counts.index_add_(0, chosen, torch.ones_like(chosen))
    return counts


def _dtype(wanted: str, plan: DistillPlan) -> str:
    """What `auto` means: half precision where the processor is fast at it."""
    if wanted != "auto":
        return wanted
    is_cpu = plan.device == "cpu" or (plan.device == "auto" and not torch.cuda.is_available())
    if is_cpu:
        return "bfloat16" if is_bfloat16_fast(torch.device("cpu")) else "float32"
    return "auto"
