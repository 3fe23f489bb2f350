"""Where the parts of a model go: one device, several of them by layer, or a shard per rank.

Settings in, arguments for transformers out, and the checks that belong to them. No weights here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel
from transformers.distributed.configuration_utils import DistributedConfig

from exspec.core.errors import InvalidRequestError, UnsupportedModelError
from exspec.engine.ranks import Ranks

_MAP_NAMES = ("auto", "balanced", "sequential")


@dataclass(frozen=True, slots=True)
class Spread:
    """`device` is where the model, or its first layer, will be; `ranks` share it if there are any.

    `device_map` is transformers' way to say what goes where; None: all of it to `device`.
    """

    device: torch.device
    device_map: str | dict[str, str | int] | None = None
    ranks: Ranks | None = None

    @property
    def loading_arguments(self) -> dict[str, Any]:
        """What `from_pretrained` is told; without any of it the model is loaded on the CPU."""
        if self.ranks is not None:
            return {"distributed_config": DistributedConfig(tp_size=self.ranks.num_ranks)}
        return {} if self.device_map is None else {"device_map": self.device_map}

    def put(self, model: PreTrainedModel) -> None:
        """Move a loaded model to its device, if it is not in its places already.

        Raises:
            UnsupportedModelError: parts of it found no place on a device.
        """
        if not self.loading_arguments:
            model.to(self.device)  # pyright: ignore[reportArgumentType]  # a wrapper hides its types
        elif self.ranks is None:
            _check_on_devices(model)

    def describe(self, model: PreTrainedModel) -> str:
        """The devices, for people."""
        if self.ranks is not None:
            return f"{self.ranks.num_ranks} x {self.ranks.device.type}"
        return ",".join(dict.fromkeys(str(weights.device) for weights in model.parameters()))


def find_spread(device: str, device_map: str, ranks: Ranks | None) -> Spread:
    """Read the settings. An empty `device_map` is none.

    Raises:
        InvalidRequestError: a device cannot be used here, or the settings contradict each other.
    """
    if ranks is not None:
        if device_map:
            raise InvalidRequestError(
                "tensor parallelism and a device map cannot be combined", field="device_map"
            )
        return Spread(ranks.device, ranks=ranks)
    if not device_map:
        return Spread(_device_of(device, "device"))
    if device != "auto":
        raise InvalidRequestError(
            f"a device map says where everything goes; device {device!r} contradicts it",
            field="device",
        )
    if device_map in _MAP_NAMES:
        return Spread(_device_of("auto", "device_map"), device_map)
    mapping = _mapping_of(device_map)
    return Spread(_device_of(str(next(iter(mapping.values()))), "device_map"), mapping)


def check_spread(config: PretrainedConfig, spread: Spread) -> None:
    """Refuse a model that cannot be divided among so many ranks.

    Raises:
        UnsupportedModelError: naming the bound.
    """
    if spread.ranks is None:
        return
    text, num_ranks = config.get_text_config(), spread.ranks.num_ranks
    if not getattr(text, "base_model_tp_plan", None):
        raise UnsupportedModelError(
            f"models of type {config.model_type!r} cannot be divided among {num_ranks} processes: "
            "transformers has no tensor-parallel plan for them"
        )
    num_heads = getattr(text, "num_attention_heads", None)
    num_kv_heads = getattr(text, "num_key_value_heads", None) or num_heads
    for name, number in (("attention heads", num_heads), ("KV heads", num_kv_heads)):
        if isinstance(number, int) and number % num_ranks:
            raise UnsupportedModelError(
                f"the model's {number} {name} cannot be divided among {num_ranks} processes: "
                f"--tensor-parallel must divide {number}"
            )


def _check_on_devices(model: PreTrainedModel) -> None:
    """What accelerate could not place it keeps elsewhere and fetches in every pass."""
    kinds = {weights.device.type for weights in model.parameters()}
    if "meta" in kinds or len(kinds) > 1:
        raise UnsupportedModelError(
            "the model does not fit on the devices of the device map: parts of it would be fetched "
            "from main memory or disk in every pass"
        )


def _mapping_of(device_map: str) -> dict[str, str | int]:
    """A map given as JSON, from module names to devices of one kind."""
    try:
        mapping = json.loads(device_map)
    except ValueError:
        mapping = None
    if not isinstance(mapping, Mapping) or not mapping:
        raise InvalidRequestError(
            f"a device map is one of {', '.join(_MAP_NAMES)}, or JSON like "
            f'{{"model.embed_tokens": 0, ...}}, not {device_map!r}',
            field="device_map",
        )
    if "disk" in mapping.values():
        raise InvalidRequestError(
            "nothing is fetched from disk in every pass: a device map names devices only",
            field="device_map",
        )
    kinds = {_device_of(str(device), "device_map").type for device in mapping.values()}
    if len(kinds) > 1:
        raise InvalidRequestError(
            f"a device map needs devices of one kind, not {' and '.join(sorted(kinds))}: parts on "
            "another kind would be fetched in every pass",
            field="device_map",
        )
    return dict(mapping)


def _device_of(name: str, field: str) -> torch.device:
    """The device asked for, or the best there is."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(int(name) if name.isdecimal() else name)
    except RuntimeError as error:
        raise InvalidRequestError(f"unknown device {name!r}", field=field) from error
    if device.type == "meta":
        raise InvalidRequestError(f"nothing is computed on device {name!r}", field=field)
    try:
        torch.empty(1, device=device)
    except (AssertionError, NotImplementedError, RuntimeError) as error:
        raise InvalidRequestError(
            f"device {name!r} cannot be used here: {' '.join(str(error).split())[:400]}",
            field=field,
        ) from error
    return device
