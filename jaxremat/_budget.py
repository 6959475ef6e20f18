"""Budgets: what a user writes, and the bytes it means."""

from __future__ import annotations

import math
import os
import re
from numbers import Integral, Real

import jax

_UNITS = {"": 1, "b": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate("kmgtp", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024), ("", 1000))
}
_FORMS = (
    "bytes as an int, a string like '12GiB', '800MB' or '60%', a fraction in (0, 1] of the plain peak, 'auto', None"
)

Budget = int | float | str | None


def check_budget(budget: Budget) -> None:
    """Raise `TypeError` or `ValueError` unless `budget` is one of the forms that `budget_bytes` takes."""
    if budget != "auto":
        budget_bytes(budget, plain_peak=1)


def budget_bytes(budget: Budget, plain_peak: int, available: int | None = None) -> int | None:
    """The bytes that `budget` allows, None for no limit; `plain_peak` is what fractions are of.

    `available` is what `"auto"` stands for, by default what the default device has free.

    >>> budget_bytes("1.5KiB", plain_peak=0), budget_bytes("60%", 1000), budget_bytes(0.5, 1000)
    (1536, 600, 500)
    """
    if budget is None:
        return None
    if isinstance(budget, str):
        if budget.strip().lower() == "auto":
            return available_bytes() if available is None else available
        return _parsed(budget, plain_peak)
    if isinstance(budget, bool) or not isinstance(budget, Real):
        raise TypeError(f"budget: expected {_FORMS}; got {budget!r}")
    if isinstance(budget, Integral):
        return _positive(int(budget), budget)
    if not 0 < budget <= 1:
        raise ValueError(
            f"budget: a float is a fraction of the plain peak in (0, 1], got {budget!r}; write bytes as an int"
        )
    return max(1, math.floor(float(budget) * plain_peak))


def _parsed(text: str, plain_peak: int) -> int:
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-z]*|%)\s*", text.lower())
    if match is None or (match[2] != "%" and match[2] not in _UNITS):
        raise ValueError(f"budget: cannot read {text!r}; expected {_FORMS}")
    number = float(match[1])
    if match[2] != "%":
        return _positive(math.floor(number * _UNITS[match[2]]), text)
    if not 0 < number <= 100:
        raise ValueError(f"budget: a percentage of the plain peak lies in (0, 100], got {text!r}")
    return max(1, math.floor(number / 100 * plain_peak))


def _positive(value: int, given: Budget) -> int:
    if value <= 0:
        raise ValueError(f"budget: expected a positive number of bytes, got {given!r}")
    return value


def available_bytes() -> int:
    """Bytes that the default device has free; on CPU, the memory that the machine has available."""
    stats = jax.local_devices()[0].memory_stats() if jax.default_backend() != "cpu" else None
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
