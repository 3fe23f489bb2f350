"""Builds a student: the target's own kind of model with fewer layers, and maybe narrower.

Any Hugging Face causal LM whose layers lie in a list will do; there is no table of architectures.
What is smaller is worked out in `exspec.distill.shrinking`; here weights are carried over.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from exspec.core.errors import UnsupportedModelError
from exspec.distill.growing import go_on_from
from exspec.distill.plan import DistillPlan
from exspec.distill.shrinking import choose_layers, layers_of, shrunk
from exspec.distill.weights import freeze_tables, renaming, weight_of

_UNBUILDABLE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What classes raise for a configuration they cannot be built from."""


def build_student(
    target: PreTrainedModel, plan: DistillPlan, start: PreTrainedModel | None = None
) -> PreTrainedModel:
    """A student of the target's class on the CPU, in float32, ready to be trained.

    At the target's width, the chosen layers, embedding, positions, final norm and head are copies
    of the target's; embedding and head are frozen (see `frozen_parts`). Narrower, the embedding
    and the head are the target's projected on its main directions, and layers are drawn anew with
    the plan's seed. What is trained is `start`'s instead, if a draft is given that was made like
    that before, with as many layers or fewer. The model is in evaluation mode: dropout, where a
    family has it, is off.

    Raises:
        InvalidRequestError: if the target has fewer layers than asked for, its width cannot be
            lowered to the one asked for, or the draft to start from has another shape.
        UnsupportedModelError: if no student can be made of the target's class.
    """
    num_layers = layers_of(target.config)
    chosen = choose_layers(num_layers, plan)
    config = shrunk(target.config, plan)
    is_narrow = _width(config) != _width(target.config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(plan.seed)
        student = _build(target, config)
    with torch.no_grad():
        if is_narrow:
            _project(student, target)
        else:
            _copy(student, target, num_layers, chosen)
            freeze_tables(student)
        if start is not None:
            go_on_from(start, student, plan.start_from or "the draft")
    return student


def frozen_parts(student: PreTrainedModel) -> dict[str, nn.Parameter]:
    """The parameters that stay as they are, by name: embedding and head, at the target's width."""
    return {name: part for name, part in student.named_parameters() if not part.requires_grad}


def _width(config: PretrainedConfig) -> int:
    return config.get_text_config().hidden_size


def _build(target: PreTrainedModel, config: PretrainedConfig) -> PreTrainedModel:
    """A model of the target's class with random weights."""
    kind: Any = type(target)
    try:
        if hasattr(config, "validate"):
            config.validate()
        student = kind._from_config(config, dtype=torch.float32)  # noqa: SLF001
    except _UNBUILDABLE as error:
        raise UnsupportedModelError(
            f"no smaller {kind.__name__} can be built: {' '.join(str(error).split())[:400]}"
        ) from error
    student.generation_config = copy.deepcopy(target.generation_config)
    return student.eval()


def _copy(
    student: PreTrainedModel, target: PreTrainedModel, num_layers: int, chosen: tuple[int, ...]
) -> None:
    """Every weight and stored buffer of the student from the target's of the same place."""
    rename = renaming(target, num_layers, chosen)
    for name, mine in student.state_dict(keep_vars=True).items():
        theirs = weight_of(target, rename(name))
        if theirs is None or theirs.shape != mine.shape:
            raise UnsupportedModelError(
                f"no student of {num_layers} layers' {type(target).__name__} can start from layers "
                f"{', '.join(map(str, chosen))}: its {name} is "
                f"{'missing' if theirs is None else tuple(theirs.shape)} there"
            )
        mine.copy_(theirs)


def _project(student: PreTrainedModel, target: PreTrainedModel) -> None:
    """Embedding, positions and head of a narrower student from the target's."""
    mine, theirs = student.get_input_embeddings(), target.get_input_embeddings()
    table = _table(theirs)
    basis = _main_directions(table, _table(mine).shape[1])
    for name, module in student.named_modules():
        source = weight_of(target, f"{name}.weight")
        if isinstance(module, nn.Embedding) and source is not None:
            _fill(module.weight, source, basis)
    head, source = student.get_output_embeddings(), target.get_output_embeddings()
    if head is None or source is None or _table(head) is _table(mine):
        return
    weight = _table(source)
    _fill(_table(head), weight, _main_directions(weight, _table(head).shape[1]))
    bias = getattr(source, "bias", None)
    if bias is not None and getattr(head, "bias", None) is not None:
        head.bias.copy_(bias)  # type: ignore[union-attr]


def _fill(mine: torch.Tensor, theirs: torch.Tensor, basis: torch.Tensor) -> None:
    """Copy a table `[n, width]`, projected where the student's is narrower."""
    if mine.shape == theirs.shape:
        mine.copy_(theirs)
    elif theirs.shape[1] == basis.shape[0] and mine.shape == (theirs.shape[0], basis.shape[1]):
        mine.copy_(theirs.to(basis) @ basis)


def _main_directions(table: torch.Tensor, width: int) -> torch.Tensor:
    """An orthonormal basis `[table's width, width]` that keeps most of a table `[n, width]`."""
    rows = table.detach().to("cpu", torch.float32)
    gram = (rows.T @ rows).to(torch.float64)
    return torch.linalg.eigh(gram).eigenvectors[:, -width:].flip(1).to(torch.float32)


def _table(module: nn.Module) -> torch.Tensor:
    """The weight of an embedding or a head."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, torch.Tensor):
        raise UnsupportedModelError(f"{type(module).__name__} has no table of tokens")
    return weight
