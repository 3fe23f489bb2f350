"""Finding weights in a Hugging Face model by name and by layer; no table of architectures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from exspec.core.errors import UnsupportedModelError


def renaming(
    model: PreTrainedModel, num_layers: int, chosen: Sequence[int]
) -> Callable[[str], str]:
    """From a name in another model, whose layer i is `model`'s layer `chosen[i]`, to the name here.

    Names outside the layers stay as they are.
    """
    lists = layer_lists(model, num_layers)

    def rename(name: str) -> str:
        for prefix in lists:
            if name.startswith(prefix):
                index, _, rest = name.removeprefix(prefix).partition(".")
                return f"{prefix}{chosen[int(index)]}.{rest}"
        return name

    return rename


def layer_lists(model: PreTrainedModel, num_layers: int) -> list[str]:
    """Prefixes of the lists that hold one module per layer: the outermost of that length.

    Raises:
        UnsupportedModelError: if there is none.
    """
    found: list[str] = []
    for name, module in model.named_modules():
        is_list = isinstance(module, nn.ModuleList) and len(module) == num_layers
        if is_list and not any(name.startswith(outer) for outer in found):
            found.append(f"{name}.")
    if not found:
        raise UnsupportedModelError(
            f"{type(model).__name__} keeps its {num_layers} layers in no list that could be cut"
        )
    return found


def freeze_tables(student: PreTrainedModel) -> None:
    """Embedding and head are the target's, and good; a small text would only wear them."""
    for module in (student.get_input_embeddings(), student.get_output_embeddings()):
        if module is not None:
            module.requires_grad_(requires_grad=False)


def weight_of(model: nn.Module, name: str) -> torch.Tensor | None:
    """A weight or buffer by its dotted name; also where the layer is packed."""
    place: Any = model
    for part in name.split("."):
        place = getattr(place, part, None)
    return place if isinstance(place, torch.Tensor) else None
