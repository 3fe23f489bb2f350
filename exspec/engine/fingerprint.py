"""A short name for exactly these weights in this configuration and dtype.

Two workers with equal fingerprints may stand in for each other. No loading here.
"""

from __future__ import annotations

import json
from hashlib import sha256

import torch
from transformers import PreTrainedModel

from exspec.engine.ranks import whole

_SAMPLES_PER_TENSOR = 64
_NOT_THE_MODEL = (
    "_name_or_path",
    "transformers_version",
    "_attn_implementation",
    "dtype",
    "distributed_config",
)


@torch.no_grad()
def fingerprint_of(model: PreTrainedModel) -> str:
    """Hash of the configuration, the dtype, and names, shapes and sampled values of all weights.

    Neither the path nor the device has a part in it, nor over how many of them it is spread.
    """
    digest = sha256()
    config = {k: v for k, v in model.config.to_dict().items() if k not in _NOT_THE_MODEL}
    digest.update(json.dumps(config, sort_keys=True, default=str).encode())
    digest.update(str(model.dtype).encode())
    for name, weights in model.named_parameters():
        digest.update(f"{name}:{tuple(weights.shape)}".encode())
        flat = whole(weights.detach()).reshape(-1)
        step = max(1, flat.numel() // _SAMPLES_PER_TENSOR)
        digest.update(flat[::step].to("cpu", torch.float64).numpy().tobytes())
    return digest.hexdigest()
