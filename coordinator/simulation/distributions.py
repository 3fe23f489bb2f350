"""Short texts for distributions, and numbers drawn from them. Pure: the random source is given."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import NoReturn

from exspec.core.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Seconds at which requests come; `num_in_flight` bounds a closed load (None: open)."""

    times: tuple[float, ...]
    num_in_flight: int | None = None


def lengths(field: str, text: str, count: int, random: Random) -> tuple[int, ...]:
    """Token counts: "64" always, "16..128" uniform with both ends, "16,20,31" in turn.

    Raises:
        InvalidRequestError: the text means nothing, or a length below 1; `field` names it.
    """
    try:
        if ".." in text:
            low, high = (int(part) for part in text.split(".."))
            drawn = tuple(random.randint(low, high) for _ in range(count))
        else:
            given = tuple(int(part) for part in text.split(","))
            low = min(given)
            drawn = tuple(given[index % len(given)] for index in range(count))
    except ValueError:
        _refuse(field, text, 'a length ("64"), a range ("16..128") or a list ("16,20,31")')
    if low < 1:
        _refuse(field, text, "lengths of at least 1")
    return drawn


def acceptances(text: str, count: int, random: Random) -> tuple[float, ...]:
    """The chance of acceptance per token, one for each row: "0.7", or "beta:7,3" per row.

    Raises:
        InvalidRequestError: the text means nothing.
    """
    kind, _, rest = text.rpartition(":")
    try:
        if kind == "beta":
            alpha, beta = (float(part) for part in rest.split(","))
            return tuple(random.betavariate(alpha, beta) for _ in range(count))
        chance = float(text)
    except ValueError:
        chance = -1.0
    if not 0 <= chance <= 1:
        _refuse("acceptance", text, 'a chance ("0.7") or a Beta distribution ("beta:7,3")')
    return (chance,) * count


def arrivals(text: str, count: int, random: Random) -> Arrivals:
    """Arrival times: "all" at once, "closed:N" in flight, "poisson:RATE" per second.

    Raises:
        InvalidRequestError: the text means nothing.
    """
    kind, _, rest = text.partition(":")
    if text == "all":
        return Arrivals((0.0,) * count)
    try:
        number = float(rest)
    except ValueError:
        number = 0.0
    if kind == "poisson" and number > 0:
        return Arrivals(_poisson(number, count, random))
    if kind != "closed" or number < 1 or number != int(number):
        _refuse("arrivals", text, '"all", "closed:N" or "poisson:RATE"')
    return Arrivals((0.0,) * count, int(number))


def _poisson(rate: float, count: int, random: Random) -> tuple[float, ...]:
    now = 0.0
    times: list[float] = []
    for _ in range(count):
        now += random.expovariate(rate)
        times.append(now)
    return tuple(times)


def _refuse(field: str, text: str, expected: str) -> NoReturn:
    name = field.replace("_", "-")
    raise InvalidRequestError(f"--{name} takes {expected}, got {text!r}", field=field)
