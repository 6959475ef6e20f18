import jax
import pytest
from hlo_samples import TARGETS, program, saved
from hypothesis import given
from hypothesis import strategies as st

from jaxremat._chips import CHIPS
from jaxremat._hlo import _ARRAY, HloError, _array, parse
from jaxremat._materialised import read, seconds
from jaxremat._partition import partition_at, representatives
from jaxremat._trace import bytes_of


def array(text):
    match = _ARRAY.fullmatch(text)
    assert match is not None
    return _array(match)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f32[]", 4),
        ("f32[]{:T(128)}", 512),
        ("f32[5,130]{1,0}", 5 * 130 * 4),
        ("f32[5,130]{1,0:T(8,128)}", 8 * 256 * 4),
        ("f32[5,130]{0,1:T(8,128)}", 136 * 128 * 4),
        ("bf16[3,16,200]{2,1,0:T(8,128)(2,1)}", 3 * 16 * 256 * 2),
        ("bf16[9,128]{1,0:T(8,128)(2,1)}", 16 * 128 * 2),
        ("pred[9,128]{1,0:T(8,128)(4,1)}", 16 * 128),
        ("s4[64]{0:E(4)}", 32),
        ("s4[7]", 4),
        ("c64[3]{0}", 24),
        ("f8e4m3fn[10]{0}", 10),
        ("f32[0,4]{1,0}", 0),
        ("token[]", 0),
    ],
)
def test_bytes_with_padding(text, expected):
    assert array(text).bytes == expected


def test_the_memory_space_is_read():
    assert array("f32[8,128]{1,0:T(8,128)S(1)}").space == 1
    assert array("f32[8,128]{1,0:T(8,128)}").space == 0


@given(
    st.lists(st.integers(1, 300), min_size=2, max_size=4),
    st.tuples(st.sampled_from([1, 2, 8, 16]), st.sampled_from([1, 128])),
)
def test_padding_never_loses_elements(dims, tile):
    order = ",".join(str(k) for k in reversed(range(len(dims))))
    text = f"f32[{','.join(map(str, dims))}]{{{order}:T({tile[0]},{tile[1]})}}"
    exact = 4
    for size in dims:
        exact *= size
    padded = array(text).bytes
    assert padded >= exact
    assert padded % (4 * tile[0] * tile[1]) == 0
    if dims[-1] % tile[1] == 0 and dims[-2] % tile[0] == 0:
        assert padded == exact


@pytest.mark.parametrize("target", TARGETS)
def test_the_schedule_of_each_target(target):
    module = parse(saved(target))
    given = [i for i in module.schedule if i.opcode == "parameter"]
    assert sorted(i.arrays[0].size for i in given) == [32 * 32, 32 * 32, 128 * 32]
    (root,) = [i for i in module.schedule if i.root]
    assert root.opcode == "tuple"
    seen = set()
    for instruction in module.schedule:
        assert set(instruction.operands) <= seen, "operands come first in a schedule"
        seen.add(instruction.name)
        for called in instruction.called:
            assert called in module.computations


@pytest.mark.parametrize(
    ("target", "kernels", "holding_a_product"), [("cpu", 11, 5), ("tpu:v5e", 6, 4), ("cuda:a100", 9, 5)]
)
def test_what_each_target_materialises(target, kernels, holding_a_product):
    """XLA:CPU leaves elementwise kernels beside products, XLA:TPU computes a product inside the kernel of another."""
    flat = program()
    found = read(flat, parse(saved(target)))
    assert found.coverage > 0.95
    kept = set(representatives(flat, found.sizes).values())
    nodes = partition_at(flat, kept)
    products = [v for node in nodes for v in node.outputs if any(e.primitive.name == "dot_general" for e in node.eqns)]
    assert len(products) == holding_a_product
    assert len(nodes) == kernels
    for v, size in found.sizes.items():
        assert size >= bytes_of(v.aval)


def test_a_tag_of_no_equation_is_none():
    flat, text = program(), saved("cpu")
    unknown = read(flat, parse(text.replace("remat_eqn18/", "remat_eqn999/")))
    assert unknown == read(flat, parse(text.replace("remat_eqn18/", "")))
    assert unknown.coverage < read(flat, parse(text)).coverage


def test_seconds_follow_bytes_and_cycles():
    found = read(program(), parse(saved("tpu:v5e")))
    estimates = seconds(found, CHIPS["tpu:v5e"])
    assert sum(estimates.values()) == pytest.approx(sum(found.moved.values()) / CHIPS["tpu:v5e"].bandwidth)
    assert min(estimates.values()) > 0
    assert not seconds(read(program(), parse(saved("cuda:a100"))), CHIPS["cuda:a100"]), "no cycles, no estimates"


def test_text_of_a_program_that_just_ran_here_is_read():
    def fun(x):
        return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jax.numpy.sin(c[1])), (0, x))[1]

    text = jax.jit(fun).lower(jax.ShapeDtypeStruct((100,), "float32")).compile().as_text()
    module = parse(text)
    loops = [i for body in module.computations.values() for i in body if i.opcode == "while"]
    assert len(loops) == 1
    assert len(loops[0].called) == 2
    assert [a.dims for a in loops[0].arrays if a.dims] == [(100,)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "HloModule m\n",
        "HloModule m, is_scheduled=true\n",
        "HloModule m, is_scheduled=true\n\nENTRY %a () -> f32[] {\n  ROOT x\n}",
    ],
)
def test_text_that_is_no_scheduled_program(text):
    with pytest.raises(HloError):
        parse(text)
