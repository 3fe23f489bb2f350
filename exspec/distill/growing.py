"""Goes on from a draft that was trained before, and lets it grow deeper without unlearning.

New layers begin as ones that do nothing: what they add to the stream is zero until they learn
(block expansion, Wu et al. 2024, LLaMA Pro, section 3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from exspec.core.errors import InvalidRequestError, UnsupportedModelError
from exspec.distill.shrinking import layers_of
from exspec.distill.weights import layer_lists, renaming, weight_of

_PROBE_TOKENS = 8
_TOLERANCE = 1e-3
"""Of the largest logit: how far apart the same numbers may be in another order."""


def go_on_from(start: PreTrainedModel, student: PreTrainedModel, name: str) -> None:
    """Give a student the trained weights of the draft `start`, called `name`.

    A student with more layers gets the start's last layer as its last and the others as its first;
    those between keep the weights they have, but add nothing yet.

    Raises:
        InvalidRequestError: if the draft is of another kind or shape, or has more layers.
        UnsupportedModelError: if layers of this kind cannot be made to add nothing.
    """
    places = _places(start, student, name)
    for mine, theirs in _trained(start, student, name, places):
        mine.copy_(theirs)
    added = [place for place in range(layers_of(student.config)) if place not in places]
    if added:
        _silence(student, added)
        _check_same(start, student)


def check_start(start: PreTrainedModel, student: PreTrainedModel, name: str) -> None:
    """Whether a student of that shape can go on from a draft of this one; no weights are read.

    Raises:
        InvalidRequestError: as `go_on_from`.
    """
    for _ in _trained(start, student, name, _places(start, student, name)):
        pass


def _places(start: PreTrainedModel, student: PreTrainedModel, name: str) -> tuple[int, ...]:
    """Where the start's layers go."""
    num_old, num_new = layers_of(start.config), layers_of(student.config)
    if type(start) is not type(student) or num_old > num_new:
        raise InvalidRequestError(
            f"{name} is a {type(start).__name__} of {num_old} layers; the draft to be made is a "
            f"{type(student).__name__} of {num_new}",
            field="start_from",
        )
    return (*range(num_old - 1), num_new - 1)


def _trained(
    start: PreTrainedModel, student: PreTrainedModel, name: str, places: Sequence[int]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Every trained weight but those of new layers, with the start's of the same shape."""
    sources = {place: index for index, place in enumerate(places)}
    num_layers = layers_of(student.config)
    rename = renaming(student, num_layers, [sources.get(i, -1) for i in range(num_layers)])
    new = tuple(
        f"{prefix}{i}."
        for prefix in layer_lists(student, num_layers)
        for i in range(num_layers)
        if i not in sources
    )
    for mine_name, mine in student.named_parameters():
        if not mine.requires_grad or mine_name.startswith(new):
            continue
        theirs = weight_of(start, rename(mine_name))
        if theirs is None or theirs.shape != mine.shape:
            found = "missing" if theirs is None else tuple(theirs.shape)
            raise InvalidRequestError(
                f"{name} has another shape than the draft to be made: its {mine_name} is {found}, "
                f"not {tuple(mine.shape)}",
                field="start_from",
            )
        yield mine, theirs


def _silence(student: PreTrainedModel, added: Sequence[int]) -> None:
    """Zero the last product of every branch of a new layer: what it adds is zero then."""
    modules = dict(student.named_modules())
    for prefix in layer_lists(student, layers_of(student.config)):
        for index in added:
            layer = modules[f"{prefix}{index}"]
            for parent in layer.modules():
                products = [one for one in parent.children() if isinstance(one, nn.Linear | Conv1D)]
                if products:
                    nn.init.zeros_(products[-1].weight)
                    if products[-1].bias is not None:
                        nn.init.zeros_(products[-1].bias)


def _check_same(start: PreTrainedModel, student: PreTrainedModel) -> None:
    """Whether the grown student still says what the start says; embedding and head are its own."""
    vocab_size = student.config.get_text_config().vocab_size
    ids = torch.arange(_PROBE_TOKENS)[None] * 7 % vocab_size
    place = torch.device(student.device)
    embedded = student.get_input_embeddings()(ids.to(place))
    bodies = [model.base_model for model in (start, student)]
    ours, theirs = (
        body(inputs_embeds=embedded.to(body.dtype), use_cache=False).last_hidden_state
        for body in reversed(bodies)
    )
    if (ours - theirs).abs().max() > _TOLERANCE * theirs.abs().max():
        raise UnsupportedModelError(
            f"layers of {type(student).__name__} cannot be added to a draft without changing what "
            "it says; take as many layers as it has"
        )
