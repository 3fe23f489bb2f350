"""A trained student as files that can be served: whole, or not there at all.

An ordinary Hugging Face directory in half precision, or for a GGUF target of the Llama family a
GGUF file (`exspec.distill.gguf_export`); the target's tokenizer and the draft vocabulary with it.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel

from exspec.core.errors import UnsupportedModelError
from exspec.distill.directory import STAGING_PREFIX
from exspec.distill.disk import check_room, told_when_full
from exspec.distill.gguf_export import can_be_gguf, rounded_table, write_gguf
from exspec.distill.plan import DistillPlan
from exspec.engine.gguf_reading import reading_once
from exspec.engine.loading import as_our_errors, quiet_transformers
from exspec.engine.packing import PackedLinear
from exspec.engine.sources import ModelSource
from exspec.engine.tokenizer_assets import NO_TOKENIZER, TokenizerReading, read_tokenizer

_log = logging.getLogger(__name__)

VOCABULARY_FILE = "draft_vocab.json"
_LAST = "config.json"
"""What makes a directory a model; put in place when all else is."""
_OVERHEAD_BYTES = 32 << 20
"""For tokenizer files and the like."""


def export_draft(
    student: PreTrainedModel,
    source: ModelSource,
    plan: DistillPlan,
    vocabulary: Sequence[int] = (),
) -> tuple[Path, ...]:
    """Write the draft model into `plan.out` and return its files.

    The target at `source` gives its tokenizer. `vocabulary` are the token ids to draft over; empty,
    or all there are: the whole head. All is written beside its place first, then moved there.

    Raises:
        CapacityError: if there is no room; then nothing has changed.
        UnsupportedModelError: if the target's tokenizer cannot be saved so that it stays the same.
    """
    assert not any(isinstance(m, PackedLinear) for m in student.modules()), "weights are packed"
    needed = export_bytes(student)
    check_room(plan.out, needed, "the draft model")
    with (
        told_when_full(plan.out, needed, "the draft model"),
        _staging(plan.out) as stage,
        quiet_transformers(),
        reading_once(),
    ):
        _write_model(student, source, plan, stage)
        _write_vocabulary(student, vocabulary, stage)
        return _put_in_place(stage, plan.out)


@torch.no_grad()
def round_frozen(student: PreTrainedModel, source: ModelSource, plan: DistillPlan) -> None:
    """Round what is not trained as `export_draft` will store it: the rest learns to live with it.

    `source` is the target's.
    """
    target_file = _gguf_target(student, source)
    for part in student.parameters():
        if part.requires_grad or part.dim() != 2:
            continue
        if target_file is not None:
            part.copy_(rounded_table(part, plan.embedding_type))
        else:
            part.copy_(part.to(_stored_dtype(source)))


def read_draft(files: Sequence[Path], kind: type[PreTrainedModel]) -> PreTrainedModel:
    """The model of the given class that `export_draft` wrote, in float32 on the CPU."""
    gguf_file = next((path.name for path in files if path.suffix == ".gguf"), None)
    named: dict[str, Any] = {} if gguf_file is None else {"gguf_file": gguf_file}
    with quiet_transformers(), reading_once(), as_our_errors("just written"):
        model = kind.from_pretrained(files[0].parent, dtype=torch.float32, **named)
    return model.eval().requires_grad_(requires_grad=False)


def export_bytes(student: PreTrainedModel) -> int:
    """About how many bytes a student takes on disk, at most."""
    return 2 * sum(part.numel() for part in student.parameters()) + _OVERHEAD_BYTES


def _write_model(
    student: PreTrainedModel, source: ModelSource, plan: DistillPlan, stage: Path
) -> None:
    """Weights, configuration and tokenizer."""
    target_file = _gguf_target(student, source)
    if target_file is not None:
        path = stage / f"{plan.out.resolve().name}.gguf"
        write_gguf(student, target_file, path, plan.embedding_type)
        _check_same_tokenizer(source, ModelSource(str(stage), path.name, None))
        return
    half: Any = copy.deepcopy(student)
    half.to(_stored_dtype(source))
    _make_advice_consistent(half)
    half.save_pretrained(stage)
    _save_tokenizer(source, stage)


def _gguf_target(student: PreTrainedModel, source: ModelSource) -> Path | None:
    """The target's file, if the student becomes one of that kind; None: a directory."""
    if source.gguf_file is None:
        return None
    target_file = Path(source.location) / source.gguf_file
    return target_file if can_be_gguf(student, target_file) else None


def _make_advice_consistent(model: PreTrainedModel) -> None:
    """transformers writes a temperature only where sampling is advised, and reads it anywhere."""
    advice: Any = model.generation_config
    stated = (advice.temperature, advice.top_k, advice.top_p)
    if not advice.do_sample and any(value is not None for value in stated):
        advice.do_sample = True


def _stored_dtype(source: ModelSource) -> torch.dtype:
    """Half precision of the target's kind; bfloat16 where it says nothing."""
    if source.gguf_file is not None:
        return torch.bfloat16
    config: Any = AutoConfig.from_pretrained(source.location, revision=source.revision)
    is_float16 = getattr(config, "dtype", None) in (torch.float16, "float16")
    return torch.float16 if is_float16 else torch.bfloat16


def _save_tokenizer(source: ModelSource, stage: Path) -> None:
    """The target's tokenizer beside the weights."""
    if not source.may_have_tokenizer:
        return
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            source.location, gguf_file=source.gguf_file, revision=source.revision
        )
    except Exception as error:
        raise UnsupportedModelError(
            f"the tokenizer of {source.location} cannot be read: {str(error)[:200]}"
        ) from error
    tokenizer.save_pretrained(stage)
    _check_same_tokenizer(source, ModelSource(str(stage), None, None))


def _check_same_tokenizer(source: ModelSource, saved: ModelSource) -> None:
    """A draft whose tokenizer is not the target's would be refused when it registers."""
    theirs, ours = _read(source), _read(saved)
    if theirs.sha256 != ours.sha256:
        raise UnsupportedModelError(
            f"the tokenizer of {source.location} ({theirs.size} ids) does not stay the same when "
            f"it is saved ({ours.size} ids)"
        )


def _read(source: ModelSource) -> TokenizerReading:
    """The tokenizer as a worker reads it."""
    return read_tokenizer(source, "untrusted") if source.may_have_tokenizer else NO_TOKENIZER


def _write_vocabulary(student: PreTrainedModel, vocabulary: Sequence[int], stage: Path) -> None:
    """The ids to draft over, unless they are all."""
    if 0 < len(vocabulary) < student.config.get_text_config().vocab_size:
        text = json.dumps(list(vocabulary), separators=(",", ":"))
        (stage / VOCABULARY_FILE).write_text(text + "\n", encoding="utf-8")


@contextmanager
def _staging(out: Path) -> Iterator[Path]:
    """A folder on the same disk as `out`, gone afterwards whatever happens."""
    out.mkdir(parents=True, exist_ok=True)
    stage = Path(tempfile.mkdtemp(prefix=STAGING_PREFIX, dir=out))
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _put_in_place(stage: Path, out: Path) -> tuple[Path, ...]:
    """Move the staged files to where they belong, once all of them are safely on disk.

    Those in folders (chat templates beside the default one) come after those beside them.
    """
    staged = sorted(
        (path for path in stage.rglob("*") if path.is_file()),
        key=lambda path: (path.name == _LAST, len(path.parts), path.name),
    )
    for path in staged:
        with path.open("rb+") as file:
            os.fsync(file.fileno())
        path.chmod(0o644)
    return tuple(_moved(path, out / path.relative_to(stage)) for path in staged)


def _moved(path: Path, place: Path) -> Path:
    place.parent.mkdir(exist_ok=True)
    return path.replace(place)
