"""The noise that makes sampling a function: of the seed, the position and the token, nothing else.

A counter-based hash in 64-bit integers, which wrap around alike on every device, and a Gumbel
number out of it by `exspec.engine.choosing.arithmetic`. A choice is the token with the largest sum
of logit and noise, which draws from the softmax exactly. Never `torch.Generator`: its streams
depend on the device, and on what was drawn before.

The functions named `reference_…` say the same in plain Python.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from exspec.engine.choosing.arithmetic import exact_log, reference_log

_BITS = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
"""What splitmix64 adds from one number of its sequence to the next."""
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)
_UNIFORM_BITS = 52
_UNUSED_BITS = 64 - _UNIFORM_BITS


def key_of(seed: int, position: int) -> int:
    """What all tokens at a position share: a signed 64-bit integer."""
    return _signed(_reference_mix(_reference_mix(seed + _STEP) + (position + 1) * _STEP))


def counters(tokens: torch.Tensor) -> torch.Tensor:
    """What the tokens bring to their hashes, int64."""
    return (tokens + 1) * _signed(_STEP)


def hashes(keys: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """64 bits for each key and token, int64; `keys` and `tokens` are broadcast."""
    unfinished = unfinished_hashes(keys, counters(tokens))
    return unfinished ^ _shifted(unfinished, _SHIFTS[2])


def unfinished_hashes(keys: torch.Tensor, token_counters: torch.Tensor) -> torch.Tensor:
    """The same but for the last step, which leaves the upper 31 bits as they are."""
    mixed = token_counters + keys
    for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS, strict=False):
        mixed ^= _shifted(mixed, shift)
        mixed *= _signed(multiplier)
    return mixed


def unfinished_hashes_on_cpu(
    keys: torch.Tensor, token_counters: torch.Tensor
) -> Iterator[np.ndarray]:
    """`unfinished_hashes` for one key `[M, 1]` after the other, int64 `[tokens]`.

    Each overwrites the one before. Twice as fast as torch: numpy shifts without a sign.
    """
    own = token_counters.numpy().view(np.uint64)
    mixed, shifted = np.empty_like(own), np.empty_like(own)
    for key in keys[:, 0].numpy().view(np.uint64):
        np.add(own, key, out=mixed)
        for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS, strict=False):
            np.right_shift(mixed, np.uint64(shift), out=shifted)
            np.bitwise_xor(mixed, shifted, out=mixed)
            np.multiply(mixed, np.uint64(multiplier), out=mixed)
        yield mixed.view(np.int64)


def uniforms(keys: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Numbers of 53 bits strictly between 0 and 1, float64, rising with the (signed) hash."""
    upper = hashes(keys, tokens) >> _UNUSED_BITS
    return (upper.to(torch.float64) + (2.0 ** (_UNIFORM_BITS - 1) + 0.5)) * 2.0**-_UNIFORM_BITS


def gumbels(keys: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Gumbel noise, float64."""
    return -exact_log(-exact_log(uniforms(keys, tokens)))


def lowest_hash_of(exceeded: torch.Tensor) -> torch.Tensor:
    """Below which `unfinished_hashes` the noise surely does not exceed these numbers; int64.

    Noise above g needs -log(u) < exp(-g), and 1 - u is never more than -log(u).
    """
    share = (torch.exp(-exceeded) * (1 + 1e-9)).clamp(max=1.0)
    half = 2.0 ** (_UNIFORM_BITS - 1)
    upper = torch.floor(half - share * 2.0**_UNIFORM_BITS).to(torch.int64) - 2
    lowest = upper.clamp(-(1 << (_UNIFORM_BITS - 1)), (1 << (_UNIFORM_BITS - 1)) - 1)
    return ((lowest << _UNUSED_BITS) >> 33) << 33


def reference_hash(seed: int, position: int, token: int) -> int:
    """`hashes` for one token, as a signed integer."""
    return _signed(_reference_mix(key_of(seed, position) + (token + 1) * _STEP))


def reference_uniform(seed: int, position: int, token: int) -> float:
    """`uniforms` for one token."""
    upper = reference_hash(seed, position, token) >> _UNUSED_BITS
    return (upper + (2.0 ** (_UNIFORM_BITS - 1) + 0.5)) * 2.0**-_UNIFORM_BITS


def reference_gumbel(seed: int, position: int, token: int) -> float:
    """`gumbels` for one token, the same to the last bit."""
    return -reference_log(-reference_log(reference_uniform(seed, position, token)))


def _shifted(numbers: torch.Tensor, by: int) -> torch.Tensor:
    """To the right, zeros coming in."""
    shifted = numbers >> by
    shifted &= (1 << (64 - by)) - 1
    return shifted


def _reference_mix(number: int) -> int:
    """The finalizer of splitmix64."""
    number &= _BITS
    for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS, strict=False):
        number = ((number ^ (number >> shift)) * multiplier) & _BITS
    return number ^ (number >> _SHIFTS[2])


def _signed(number: int) -> int:
    """64 bits as Python and torch write them."""
    number &= _BITS
    return number - (1 << 64) if number >> 63 else number
