"""A flat program becomes nodes: kernels, each a root equation and the equations that belong to it.

A node is something that is materialised. Heavy equations (products, convolutions, reductions, gathers, control flow)
are the roots of nodes. Light ones (elementwise, reshapes, broadcasts) belong to the kernel that reads them:

- what one kernel alone reads is computed inside it;
- what can be rebuilt from next to nothing (masks, broadcasts, keys), or cheaply from one value that is no larger (a
  normalisation, a relu), is computed inside every kernel that reads it;
- what directly follows a heavy equation and is its only reader becomes the end of that kernel, its root;
- what several kernels read is a node of its own, and so is what is worth keeping instead of the larger values it is
  made of (a dropout mask instead of the random bits).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import jax.extend.core as jex

from jaxremat._trace import Program, bytes_of, is_literal, scope_of, variables

_ELEMENTWISE = """
abs acos acosh add add_any and asin asinh atan atan2 atanh bitcast_convert_type cbrt ceil clamp conj convert_element_type
copy copy_p cos cosh div eq erf erf_inv erfc exp exp2 expm1 floor ge gt imag integer_pow is_finite le log log1p logistic
lt max min mul name ne neg nextafter not or pow real reduce_precision rem round rsqrt select_n shift_left
shift_right_arithmetic shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh xor complex mul_add
clz eq_to le_to log2 lt_to mulhi one_minus_square polynomial population_count
""".split()
_SHAPE = """
broadcast_in_dim concatenate expand_dims iota pad reshape rev slice squeeze transpose dynamic_slice
stack tile
""".split()
_ALIASING = frozenset("broadcast_in_dim copy copy_p expand_dims name reshape squeeze stop_gradient transpose".split())
_LIGHT = frozenset(_ELEMENTWISE + _SHAPE)
_FUSED = frozenset(  # heavy by rule, but XLA may compute them inside several kernels, and was seen to
    "gather reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum scatter scatter-add scatter_add".split()
)
_CALLS = frozenset("custom_jvp_call custom_vjp_call custom_vjp_call_jaxpr jit pjit closed_call".split())
_CONTROL = frozenset("cond while scan pallas_call custom_call ffi_call shard_map".split())
_DEAR = frozenset(
    "acos acosh asin asinh atan atan2 atanh cbrt cos cosh erf erf_inv erfc exp exp2 expm1 log log1p log2 logistic pow sin "
    "sinh tan tanh".split()
)

_LONGEST_CLONE = 16  # equations; longer chains of small values get a node, so that clones do not grow quadratically


@dataclass(frozen=True)
class Node:
    """A kernel: `eqns` in order, the last one being its root; what it reads and what others read of it."""

    name: str
    eqns: tuple[Any, ...]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    effects: bool = False

    @property
    def transposed(self) -> bool:
        """Whether it computes part of a backward pass."""
        return any("transpose(" in scope_of(eqn) for eqn in self.eqns)


@dataclass(frozen=True)
class _Flow:
    """Who makes and who reads each variable, by the equation's number."""

    eqns: tuple[Any, ...]
    producer: dict[Any, int]
    readers: dict[Any, tuple[int, ...]]
    results: frozenset[Any]
    tiny: int

    @classmethod
    def of(cls, program: Program) -> _Flow:
        producer: dict[Any, int] = {}
        readers: dict[Any, list[int]] = {}
        for k, eqn in enumerate(program.eqns):
            for v in dict.fromkeys(variables(eqn.invars)):
                readers.setdefault(v, []).append(k)
            producer |= dict.fromkeys(eqn.outvars, k)
        largest = max((bytes_of(v.aval) for eqn in program.eqns for v in eqn.outvars), default=0)
        results = frozenset(v for v in program.results if v in producer)
        return cls(
            program.eqns, producer, {v: tuple(ks) for v, ks in readers.items()}, results, tiny=max(256, largest // 1024)
        )

    def light(self, k: int) -> bool:
        """Whether equation `k` is elementwise or moves data only, and so belongs to the kernel that reads it."""
        return is_light(self.eqns[k])

    def cheap(self, k: int) -> bool:
        return self.light(k) and not _primitives(self.eqns[k]) & _DEAR

    def output_bytes(self, k: int) -> int:
        return sum(bytes_of(v.aval) for v in self.eqns[k].outvars)


def is_light(eqn: Any) -> bool:
    """Whether an equation is elementwise or moves data only."""
    return len(eqn.outvars) == 1 and _primitives(eqn) <= _LIGHT


def partition(program: Program) -> tuple[Node, ...]:
    """Group the equations of `program` into nodes, in the order in which their roots stand in the program."""
    flow = _Flow.of(program)
    ends = _epilogues(flow)
    clones = _clones(flow, ends)
    forced: set[int] = set()
    while True:
        members = _assign(flow, clones, ends, forced)
        promoted = _worth_keeping(flow, clones, members)
        if not promoted:
            return _order(_nodes(flow, members), program)
        forced |= promoted


def representatives(program: Program, values: Collection[Any]) -> dict[Any, Any]:
    """For each of `values`, the value that nodes keep in its place: the same elements in another shape, or itself."""
    flow = _Flow.of(program)
    return {v: _representative(flow, v) for v in values}


def partition_at(program: Program, values: Collection[Any]) -> tuple[Node, ...]:
    """Group the equations of `program` into nodes that end where one of `values` is made, as a compiler was seen to do.

    `values` are `representatives`. What XLA fuses is computed in every node that needs it. A product, a convolution or
    the like that several need is a node of its own.
    """
    flow = _Flow.of(program)
    owners: dict[int, frozenset[int]] = {}
    for k in reversed(range(len(flow.eqns))):
        eqn = flow.eqns[k]
        readers = {r for v in eqn.outvars for r in flow.readers.get(v, ())}
        owning = frozenset[int]().union(*(owners[r] for r in readers))
        root = eqn.effects or any(v in values or v in flow.results for v in eqn.outvars)
        shared = len(owning) != 1 and not _primitives(eqn) <= _LIGHT | _FUSED and flow.output_bytes(k) > flow.tiny
        owners[k] = frozenset((k,)) if root or shared or not owning else owning
    members: dict[int, list[int]] = {}
    for k in range(len(flow.eqns)):
        for root in owners[k]:
            members.setdefault(root, []).append(k)
    return _order(_nodes(flow, members), program)


def _representative(flow: _Flow, value: Any) -> Any:
    """Of the values that share a buffer with `value` under other shapes, the one that the others are made of."""
    source = value
    while (k := flow.producer.get(source)) is not None and (made_of := _aliased(flow, k)) is not None:
        if made_of not in flow.producer:
            break
        source = made_of
    while source not in flow.results:
        readers = flow.readers.get(source, ())
        if len(readers) != 1 or _aliased(flow, readers[0]) is not source:
            break
        source = flow.eqns[readers[0]].outvars[0]
    return source


def _aliased(flow: _Flow, k: int) -> Any:
    """What the result of equation `k` is another shape of; None if it is something new."""
    eqn = flow.eqns[k]
    if eqn.primitive.name not in _ALIASING or is_literal(eqn.invars[0]):
        return None
    source, result = eqn.invars[0], eqn.outvars[0]
    same = source.aval.size == result.aval.size and source.aval.dtype == result.aval.dtype
    return source if same else None


def _primitives(eqn: Any) -> set[str]:
    """The primitives that an equation runs: its own, or those of its body where it is a call."""
    bodies = list(jex.jaxprs_in_params(eqn.params)) if eqn.primitive.name in _CALLS else []
    if not bodies:
        return {eqn.primitive.name}
    return set().union(*(_primitives(inner) for body in bodies for inner in body.eqns))


def _epilogues(flow: _Flow) -> dict[int, int]:
    """For each heavy equation, where its kernel ends: light equations that alone read what comes before them."""
    end_of: dict[int, int] = {}
    taken: set[int] = set()
    for heavy, eqn in enumerate(flow.eqns):
        if flow.light(heavy) or eqn.effects or len(eqn.outvars) != 1 or eqn.primitive.name in _CONTROL:
            continue
        if flow.output_bytes(heavy) <= flow.tiny and all(bytes_of(v.aval) <= flow.tiny for v in variables(eqn.invars)):
            continue
        end = heavy
        while (reader := _only_reader(flow, end)) is not None:
            others = [v for v in variables(flow.eqns[reader].invars) if v not in flow.eqns[end].outvars]
            early = all(_available(flow, v, heavy) for v in others)
            if reader in taken or not early or flow.output_bytes(reader) > flow.output_bytes(end):
                break
            taken.add(end)
            end = reader
        taken.add(end)
        end_of[heavy] = end
    return end_of


def _available(flow: _Flow, v: Any, heavy: int, depth: int = 4) -> bool:
    """Whether `v` is there before equation `heavy` runs, or a few light equations make it from what is."""
    k = flow.producer.get(v, -1)
    if k < heavy:
        return True
    return (
        depth > 0
        and flow.light(k)
        and all(_available(flow, u, heavy, depth - 1) for u in variables(flow.eqns[k].invars))
    )


def _clones(flow: _Flow, ends: dict[int, int]) -> frozenset[int]:
    """Equations that every kernel reading them computes itself, since that needs no memory and next to no time."""
    kernels = {k for heavy, end in ends.items() for k in (heavy, end)}
    leaves: dict[int, frozenset[Any]] = {}
    length: dict[int, int] = {}
    for k, eqn in enumerate(flow.eqns):
        if eqn.effects or eqn.primitive.name in _CONTROL or k in kernels or any(v in flow.results for v in eqn.outvars):
            continue
        sources = dict.fromkeys(variables(eqn.invars))
        inner = [flow.producer[v] for v in sources if flow.producer.get(v) in leaves]
        leaf = {v for v in sources if flow.producer.get(v) not in leaves}.union(*(leaves[i] for i in inner))
        if 1 + sum(length[i] for i in inner) <= _LONGEST_CLONE and _cloneable(flow, k, leaf):
            leaves[k] = frozenset(leaf)
            length[k] = 1 + sum(length[i] for i in inner)
    return frozenset(leaves)


def _cloneable(flow: _Flow, k: int, leaves: set[Any]) -> bool:
    """Whether equation `k` costs next to nothing, and its `leaves` no more bytes than its result."""
    size, result = sum(bytes_of(v.aval) for v in leaves), flow.output_bytes(k)
    if not flow.light(k):
        return size <= flow.tiny and result <= flow.tiny
    small = [v for v in leaves if bytes_of(v.aval) <= flow.tiny]
    single = len(leaves) - len(small) <= 1 and flow.cheap(k)
    return size <= max(flow.tiny, result // 8) or (single and size <= result + flow.tiny * len(small))


def _only_reader(flow: _Flow, k: int) -> int | None:
    """The light equation that alone reads the result of `k`, if there is one."""
    (out,) = flow.eqns[k].outvars
    readers = flow.readers.get(out, ())
    if len(readers) != 1 or out in flow.results or not flow.light(readers[0]):
        return None
    return readers[0]


def _assign(flow: _Flow, clones: frozenset[int], ends: dict[int, int], forced: set[int]) -> dict[int, list[int]]:
    """Give every equation to the kernels it is computed in: root -> its equations, in order."""
    anchors = set(ends.values()) | forced
    inside = {k for k, end in ends.items() if end != k}
    owners: dict[int, frozenset[int]] = {}
    for k in reversed(range(len(flow.eqns))):
        eqn = flow.eqns[k]
        heavy = not flow.light(k) and k not in inside and k not in clones
        result = any(v in flow.results for v in eqn.outvars)
        if heavy or result or k in anchors or eqn.effects:
            owners[k] = frozenset((k,))
            continue
        readers = {r for v in eqn.outvars for r in flow.readers.get(v, ())}
        owning = frozenset[int]().union(*(owners[r] for r in readers))
        owners[k] = owning if len(owning) == 1 or k in clones else frozenset((k,))
    members: dict[int, list[int]] = {}
    for k in range(len(flow.eqns)):
        for root in owners[k]:
            members.setdefault(root, []).append(k)
    return members


def _worth_keeping(flow: _Flow, clones: frozenset[int], members: dict[int, list[int]]) -> set[int]:
    """Light equations inside a kernel whose result is smaller than the values that live on only to rebuild it there."""
    last_read: dict[Any, list[int]] = {}
    for root, ks in members.items():
        for v in {v for k in ks for v in variables(flow.eqns[k].invars)}:
            last_read.setdefault(v, []).append(root)
    chosen = set()
    for root, ks in members.items():
        gains = {
            k: _idle(flow, k, ks, last_read) - flow.output_bytes(k) * (root - k)
            for k in ks
            if k != root and k not in clones and flow.light(k)
        }
        if gains and max(gains.values()) > 0:
            chosen.add(max(gains, key=gains.__getitem__))
    return chosen


def _idle(flow: _Flow, k: int, kernel: list[int], last_read: dict[Any, list[int]]) -> int:
    """Bytes times equations for which values live on after every other reader, only for the sake of `k` in `kernel`."""
    root, within, feeding = kernel[-1], set(kernel), {k}
    for i in reversed(kernel):
        if i in feeding:
            feeding |= {flow.producer[v] for v in variables(flow.eqns[i].invars) if flow.producer.get(v) in within}
    elsewhere = {v for i in within - feeding for v in variables(flow.eqns[i].invars)}
    total, size = 0, 0
    for v in {v for i in feeding for v in variables(flow.eqns[i].invars)} - elsewhere:
        made = flow.producer.get(v)
        if made is None or made in within or v in flow.results:
            continue
        last = max((r for r in last_read[v] if r != root), default=made)
        if last < root:
            size += bytes_of(v.aval)
            total += bytes_of(v.aval) * (root - last)
    return total if size > flow.output_bytes(k) else 0


def _nodes(flow: _Flow, members: dict[int, list[int]]) -> list[Node]:
    external: set[Any] = set(flow.results)
    inputs: dict[int, tuple[Any, ...]] = {}
    for root, ks in members.items():
        made = {v for k in ks for v in flow.eqns[k].outvars}
        inputs[root] = tuple(dict.fromkeys(v for k in ks for v in variables(flow.eqns[k].invars) if v not in made))
        external.update(inputs[root])
    nodes = []
    for root in sorted(members):
        eqns = tuple(flow.eqns[k] for k in members[root])
        outputs = tuple(v for v in flow.eqns[root].outvars if v in external)
        label = next(
            (e.primitive.name for e in eqns if e.primitive.name not in _LIGHT | _CALLS), eqns[-1].primitive.name
        )
        nodes.append(Node(f"{label}_{root}", eqns, inputs[root], outputs, effects=any(e.effects for e in eqns)))
    return nodes


def dependencies(nodes: Sequence[Node]) -> list[tuple[int, ...]]:
    """For each node, the nodes whose results it reads; effects depend on the effects before them."""
    producer = {v: k for k, node in enumerate(nodes) for v in node.outputs}
    deps = []
    effect: int | None = None
    for k, node in enumerate(nodes):
        found = {producer[v] for v in node.inputs if v in producer}
        if node.effects:
            found |= {effect} if effect is not None else set()
            effect = k
        deps.append(tuple(sorted(found)))
    return deps


def _order(nodes: list[Node], program: Program) -> tuple[Node, ...]:
    """Keep the program's order, but run at once whatever frees at least as many bytes as it leaves.

    XLA and JAX leave weight gradients to the end, and with them the activations they read.
    """
    results = program.results
    deps = dependencies(nodes)
    readers: list[set[int]] = [set() for _ in nodes]
    for k, ds in enumerate(deps):
        for d in ds:
            readers[d].add(k)
    left = [sum(bytes_of(v.aval) for v in node.outputs if v not in results) for node in nodes]
    waiting = [len(ds) for ds in deps]
    pending = [len(r) for r in readers]
    ready = {k for k, w in enumerate(waiting) if w == 0}
    order = []
    while ready:
        growth = {k: left[k] - sum(left[d] for d in deps[k] if pending[d] == 1) for k in ready}
        k = min(ready, key=lambda k: (growth[k] > 0, k))
        ready.remove(k)
        order.append(nodes[k])
        for d in deps[k]:
            pending[d] -= 1
        for r in readers[k]:
            waiting[r] -= 1
            if waiting[r] == 0:
                ready.add(r)
    return tuple(order)
