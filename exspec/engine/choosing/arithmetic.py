"""exp and log in float64 out of single IEEE operations: the same bits on any device.

A library's own may differ by a unit in the last place between devices, and between the vectorised
and the last few elements of one tensor; a choice must not. The formulas are those of fdlibm, with
errors below one unit in the last place. `reference_log` is the same in plain Python.
"""

from __future__ import annotations

import math

import torch

_LN2_HIGH = 6.93147180369123816490e-01
_LN2_LOW = 1.90821492927058770002e-10
_PER_LN2 = 1.44269504088896338700e00
_SQRT_HALF = 0.70710678118654752
_LOG_EVEN = (6.666666666666735130e-01, 2.857142874366239149e-01, 1.818357216161805012e-01)
_LOG_LAST = 1.479819860511658591e-01
_LOG_ODD = (3.999999999940941908e-01, 2.222219843214978396e-01, 1.531383769920937332e-01)
_EXP = (
    1.66666666666666019037e-01,
    -2.77777777770155933842e-03,
    6.61375632143793436117e-05,
    -1.65339022054652515390e-06,
    4.13813679705723846039e-08,
)
_LOWEST_EXPONENT = -708.0
"""Below it exp is taken for 0: what it gives would soon be no normal number."""


def exact_log(numbers: torch.Tensor) -> torch.Tensor:
    """Natural logarithms of positive normal numbers, float64."""
    mantissas, exponents = torch.frexp(numbers)
    is_low = mantissas < _SQRT_HALF
    f = torch.where(is_low, mantissas + mantissas, mantissas) - 1.0
    k = (exponents - is_low.to(exponents.dtype)).to(torch.float64)
    s = f / (f + 2.0)
    z = s * s
    w = z * z
    odd = w * (w * (w * _LOG_ODD[2] + _LOG_ODD[1]) + _LOG_ODD[0])
    even = z * (w * (w * (w * _LOG_LAST + _LOG_EVEN[2]) + _LOG_EVEN[1]) + _LOG_EVEN[0])
    half_square = (f * 0.5) * f
    tail = s * (half_square + (even + odd)) + k * _LN2_LOW
    return k * _LN2_HIGH - ((half_square - tail) - f)


def reference_log(number: float) -> float:
    """The same for one number, without torch."""
    mantissa, exponent = math.frexp(number)
    if mantissa < _SQRT_HALF:
        mantissa, exponent = mantissa + mantissa, exponent - 1
    f, k = mantissa - 1.0, float(exponent)
    s = f / (f + 2.0)
    z = s * s
    w = z * z
    odd = w * (w * (w * _LOG_ODD[2] + _LOG_ODD[1]) + _LOG_ODD[0])
    even = z * (w * (w * (w * _LOG_LAST + _LOG_EVEN[2]) + _LOG_EVEN[1]) + _LOG_EVEN[0])
    half_square = (f * 0.5) * f
    tail = s * (half_square + (even + odd)) + k * _LN2_LOW
    return k * _LN2_HIGH - ((half_square - tail) - f)


def exact_exp(numbers: torch.Tensor) -> torch.Tensor:
    """e to the power of numbers that are not positive, float64; 0 for those far below zero."""
    x = numbers.clamp_min(_LOWEST_EXPONENT)
    k = torch.floor(x * _PER_LN2 + 0.5)
    high = x - k * _LN2_HIGH
    low = k * _LN2_LOW
    r = high - low
    t = r * r
    p = t * (t * (t * (t * (t * _EXP[4] + _EXP[3]) + _EXP[2]) + _EXP[1]) + _EXP[0])
    c = r - p
    y = 1.0 - ((low - (r * c) / (2.0 - c)) - high)
    powers = ((k.to(torch.int64) + 1023) << 52).view(torch.float64)
    return torch.where(numbers < _LOWEST_EXPONENT, 0.0, y * powers)
