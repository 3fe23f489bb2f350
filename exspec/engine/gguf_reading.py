"""Makes transformers read a GGUF file once per load instead of four times, and quickly.

Configuration, tokenizer and weights each parse the whole file again, and the tensor names are
worked out once per module; together half of the loading time of a small model. What is left is
half as long with plain arrays: the reader makes one of every word of the vocabulary, and arrays
that know the file they are mapped from are slow to make. Nothing else changes, and that only inside
the block. Its progress bar is made to obey transformers' own switch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gguf
import numpy as np
from gguf.gguf_reader import GGUFReader
from transformers import modeling_gguf_pytorch_utils
from transformers.utils import logging as hf_logging


@contextmanager
def reading_once() -> Iterator[None]:
    """Remember parsed GGUF files and tensor name maps inside the block."""
    reader = lru_cache(maxsize=2)(_PlainReader)
    names = lru_cache(maxsize=8)(gguf.get_tensor_name_map)
    with (
        patch.object(gguf, "GGUFReader", reader),
        patch.object(gguf, "get_tensor_name_map", names),
        patch.object(modeling_gguf_pytorch_utils, "tqdm", hf_logging.tqdm),
    ):
        yield


def open_gguf(path: Path) -> gguf.GGUFReader:
    """A parsed GGUF file; inside `reading_once` the same as was parsed before."""
    is_plain = gguf.GGUFReader is GGUFReader
    return _PlainReader(path) if is_plain else gguf.GGUFReader(str(path))


class _PlainReader(gguf.GGUFReader):
    """Sees the mapped file as a plain array."""

    def __setattr__(self, name: str, value: Any) -> None:  # noqa: ANN401
        super().__setattr__(name, np.asarray(value) if name == "data" else value)
