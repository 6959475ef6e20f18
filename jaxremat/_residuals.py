"""What a pair of scans keeps of each iteration, and what the backward one computes again.

The equations of an iteration that either scan can run, and the values they make, give a 0-1 program: the cut relaxation
of section C for a single cut, between the two bodies, where every byte that crosses it counts once an iteration. Each
value that the backward body reads is kept, or its equation runs there too, on values that are kept or run in turn. With
the bytes bounded ever lower it gives a ladder of choices, from the cheapest one to the one that keeps the least.

On top of it, iterations go in *segments*: only the carry at the start of each is kept, and the backward scan runs the
forward one again a segment at a time, of which it keeps what such a choice says; segments may have segments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from jaxremat._pairs import Pair
from jaxremat._trace import bytes_of, variables
from jaxremat.solvers._highs import Highs
from jaxremat.solvers._mip import Mip

_RUNGS = 8  # of choices of residuals between the cheapest and the smallest
_SECONDS = 10.0  # for each choice of residuals
_DEEPEST = 3  # segments within segments
_STEPS = 8  # between two choices
_UNEVEN = 1.3  # times the bytes of uneven segments, up to which even ones are preferred


@dataclass(frozen=True)
class Part:
    """A number of iterations that all keep the same; equations are those of the joint body, by number.

    - `kept`: what the forward scan stacks, as (equation, result), or (-1, k) for its k-th input.
    - `again`: the equations that the backward scan runs again.
    - `segments`: iterations in a segment, of a segment in a segment of that, and so on; empty for none.
    """

    length: int
    kept: tuple[tuple[int, int], ...]
    again: tuple[int, ...]
    segments: tuple[int, ...] = ()


@dataclass(frozen=True)
class Choice:
    """What the pair of scans that starts with equation `forward` does.

    - `parts`: in the order in which the forward scan runs.
    - `bytes`: of all stacks. `cost`: of what is run beyond one iteration each, forward and backward.
    """

    forward: int
    parts: tuple[Part, ...]
    bytes: int
    cost: float

    @staticmethod
    def of(record: Mapping[str, Any]) -> Choice:
        """Read what `dataclasses.asdict` gives, by way of JSON. Raises `ValueError` or `TypeError` if it is none."""
        entries = {name: _tuples(entry) for name, entry in record.items()}
        parts = tuple(Part(**{name: _tuples(entry) for name, entry in part.items()}) for part in entries.pop("parts"))
        for part in parts:
            numbers = [part.length, *(n for place in part.kept for n in place), *part.again, *part.segments]
            if not all(isinstance(n, int) for n in numbers):
                raise ValueError("a part of a loop holds what is no number")
        return Choice(parts=parts, **entries)

    def describe(self) -> str:
        """In words, for people."""
        words = []
        for part in self.parts:
            segments = "".join(f" in segments of {segment}" for segment in part.segments)
            words.append(
                f"{part.length} iterations{segments}, {len(part.kept)} values kept, {len(part.again)} equations again"
            )
        return f"scan {self.forward}: {'; '.join(words)}"


def _tuples(entry: Any) -> Any:
    return tuple(map(_tuples, entry)) if isinstance(entry, list) else entry


def value(pair: Pair, place: tuple[int, int]) -> Any:
    """The variable of the joint body that (equation, result) or (-1, input) stands for."""
    k, j = place
    return pair.inputs[j] if k < 0 else pair.joint.eqns[k].outvars[j]


def ladder(pair: Pair, costs: Mapping[int, float], traffic: float) -> list[Choice]:
    """Choices for `pair`, ever dearer and ever smaller.

    `costs` are those of its early equations by number, `traffic` is that of a byte kept.
    """
    with Highs() as highs:
        flat = _flat(pair, costs, traffic, highs)
    choices = [*flat, *(c for choice in flat for c in _segmented(pair, choice, costs))] if pair.opposed else flat
    pure = _hull(choices)
    return [rung for a, b in zip(pure, [*pure[1:], None], strict=True) for rung in (a, *_mixed(a, b))]


def _hull(choices: Sequence[Choice]) -> list[Choice]:
    """Those choices that no mixture of others beats, ever dearer and ever smaller."""
    found: list[Choice] = []
    for choice in sorted(choices, key=lambda c: (c.cost, c.bytes)):
        if found and choice.bytes >= found[-1].bytes:
            continue
        while len(found) > 1 and price(found[-2], choice) <= price(found[-2], found[-1]):
            found.pop()
        found.append(choice)
    return found


def price(now: Choice, then: Choice) -> float:
    """What a byte less costs."""
    return (then.cost - now.cost) / max(1, now.bytes - then.bytes)


def _mixed(a: Choice, b: Choice | None) -> list[Choice]:
    """Between two choices: some iterations as in one, some as in the other, in steps of a few per cent of the bytes.

    The iterations that keep more come last. They are the first that the backward scan is done with, before what the
    others compute again takes its room.
    """
    if b is None or len(a.parts) + len(b.parts) > 2:
        return []
    (first,), (last,) = b.parts, a.parts
    length = first.length
    unit = first.segments[0] if first.segments else 1
    step = max(unit, length // _STEPS // unit * unit)
    found = []
    for count in range(step, length, step):
        if last.segments and (length - count) % last.segments[0]:
            continue
        parts = (replace(first, length=count), replace(last, length=length - count))
        share = count / length
        mixed = Choice(
            a.forward, parts, int(share * b.bytes + (1 - share) * a.bytes), share * b.cost + (1 - share) * a.cost
        )
        found.append(mixed)
    return found


def _flat(pair: Pair, costs: Mapping[int, float], traffic: float, highs: Highs) -> list[Choice]:
    """Choices without segments."""
    best = _choose(pair, costs, traffic, math.inf, highs)
    least = _choose(pair, dict.fromkeys(costs, 0.0), 1.0, math.inf, highs)
    if best is None or least is None:
        return []
    found = [best]
    lowest, highest = max(1, least.bytes), max(1, best.bytes)
    for rung in range(1, _RUNGS + 1):
        choice = _choose(pair, costs, traffic, highest * (lowest / highest) ** (rung / _RUNGS) * (1 + 1e-9), highs)
        if choice is not None and choice.bytes < found[-1].bytes:
            found.append(choice)
    return found


def _choose(pair: Pair, costs: Mapping[int, float], traffic: float, limit: float, highs: Highs) -> Choice | None:
    """The cheapest choice whose stacks take at most `limit` bytes."""
    eqns, length = pair.joint.eqns, pair.first.length
    near = sorted(pair.needed_for(pair.residuals) & pair.early)
    mip = Mip()
    again = {k: mip.binary(cost=costs[k]) for k in near}
    extra = {k: mip.binary(cost=costs[k]) for k in near if k not in pair.forced}
    places = _places(pair, near)
    keep = {v: mip.binary(cost=traffic * bytes_of(v.aval)) for v in places}
    standing = _standing(pair)

    def available(v: Any) -> dict[int, float] | None:
        """Variables one of which must be 1 for `v` to be there in the backward body; None if it always is."""
        if v not in keep or v in standing:
            return None
        made = pair.made_by.get(v)
        sources = [keep[v], again.get(made) if made is not None else None, *(keep[c] for c in _handed_on(pair, v))]
        return dict.fromkeys((s for s in sources if s is not None), 1.0)

    for v in pair.residuals:
        if (sources := available(v)) is not None:
            mip.row(sources, ">", 1.0)
    for k, run in again.items():
        for v in variables(eqns[k].invars):
            if (sources := available(v)) is not None:
                mip.row(sources | {run: -1.0}, ">", 0.0)
    for k, run in extra.items():
        for v in eqns[k].outvars:
            mip.row({keep[v]: 1.0, run: -1.0}, "<", 0.0)
        for v in variables(eqns[k].invars):
            if pair.made_by.get(v) in extra:
                mip.row({run: 1.0, extra[pair.made_by[v]]: -1.0}, "<", 0.0)
    sizes = {keep[v]: float(bytes_of(v.aval) * length) for v in places if v not in standing}
    if math.isfinite(limit) and any(sizes.values()):
        unit = max(sizes.values())
        mip.row({k: size / unit for k, size in sizes.items()}, "<", limit / unit)
    scale = max(mip.cost, default=0.0) or 1.0
    x = highs.solve(replace(mip, cost=[c / scale for c in mip.cost]), _SECONDS).x
    if x is None:
        return None
    kept = [v for v in places if x[keep[v]] > 0.5 and v not in standing]
    part = Part(length, tuple(places[v] for v in kept), tuple(k for k, run in again.items() if x[run] > 0.5))
    bytes_ = sum(bytes_of(v.aval) for v in kept) * length
    return Choice(pair.forward, (part,), bytes_, length * math.fsum(c * round(x[j]) for j, c in enumerate(mip.cost)))


def _places(pair: Pair, near: Sequence[int]) -> dict[Any, tuple[int, int]]:
    """What can be kept, and where it stands."""
    inputs = [*pair.carry, *pair.xs]
    first = len(pair.consts)
    places = {v: (-1, first + j) for j, v in enumerate(inputs)}
    return places | {v: (k, j) for k in near for j, v in enumerate(pair.joint.eqns[k].outvars)}


def _standing(pair: Pair) -> set[Any]:
    """What the backward scan can read at no cost: stacks that are made in any case, and operands that are there."""
    lasting = set(variables(pair.ys[j] for j in pair.lasting))
    return lasting | {pair.xs[j] for j in pair.at_hand}


def _handed_on(pair: Pair, v: Any) -> list[Any]:
    """The carries that `v` becomes at the end of an iteration: where they are kept, the next iteration has them."""
    if not pair.opposed:
        return []
    return [c for c, out in zip(pair.carry, pair.carry_out, strict=True) if out is v]


def _segmented(pair: Pair, choice: Choice, costs: Mapping[int, float]) -> list[Choice]:
    """The choice within segments, of segments, up to a few deep: of each depth the lengths that take the least.

    Where no length that divides the number of iterations is nearly as good, the rest is a part of its own.
    """
    (part,), length = choice.parts, pair.first.length
    carry = sum(bytes_of(v.aval) for v in pair.carry)
    held = sum(bytes_of(pair.xs[j].aval) for j in range(len(pair.xs)) if j not in pair.at_hand) * length
    forward = length * math.fsum(costs[k] for k in pair.needed_for(pair.carry_out))
    inner = choice.bytes // length
    found = []
    for depth in range(1, _DEEPEST + 1):
        options = [(_bytes(length, s, carry, inner), length % s[0] > 0, s) for s in _nested(length, depth)]
        whole = min((option for option in options if not option[1]), default=None)
        best = min(options, default=None)
        if best is None:
            break
        size, uneven, segments = whole if whole and whole[0] <= _UNEVEN * best[0] else best
        rest = length % segments[0]
        parts = (replace(part, segments=segments, length=length - rest), replace(part, length=rest))
        found.append(Choice(pair.forward, parts if uneven else parts[:1], size + held, choice.cost + depth * forward))
    return found


def _bytes(length: int, segments: tuple[int, ...], carry: int, inner: int) -> int:
    """Bytes of all stacks at a time: the carries that segments start from, and what the innermost one keeps."""
    total = inner * (length % segments[0])
    outer = length
    for segment in segments:
        total += carry * (outer // segment)
        outer = segment
    return total + inner * outer


@cache
def _nested(length: int, depth: int) -> list[tuple[int, ...]]:
    """Lengths of segments, each but the first dividing the one around it."""
    return [(k, *rest) for k in range(2, length // 2 + 1) for rest in _dividing(k, depth - 1)]


@cache
def _dividing(length: int, depth: int) -> list[tuple[int, ...]]:
    if depth == 0:
        return [()]
    small = [k for k in range(1, math.isqrt(length) + 1) if length % k == 0]
    divisors = {k for d in small for k in (d, length // d)} - {1, length}
    return [(k, *rest) for k in sorted(divisors) for rest in _dividing(k, depth - 1)]
