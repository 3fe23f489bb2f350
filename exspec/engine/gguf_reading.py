"""Makes transformers read a GGUF file once per load instead of four times.

Configuration, tokenizer and weights each parse the whole file again, and the tensor names are
worked out once per module; together half of the loading time of a small model. Only these two
repetitions are removed, and only inside the block. Its progress bar is made to obey transformers'
own switch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from unittest.mock import patch

import gguf
from transformers import modeling_gguf_pytorch_utils
from transformers.utils import logging as hf_logging


@contextmanager
def reading_once() -> Iterator[None]:
    """Remember parsed GGUF files and tensor name maps inside the block."""
    reader = lru_cache(maxsize=2)(gguf.GGUFReader)
    names = lru_cache(maxsize=8)(gguf.get_tensor_name_map)
    with (
        patch.object(gguf, "GGUFReader", reader),
        patch.object(gguf, "get_tensor_name_map", names),
        patch.object(modeling_gguf_pytorch_utils, "tqdm", hf_logging.tqdm),
    ):
        yield
