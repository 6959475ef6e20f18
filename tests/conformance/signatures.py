"""What goes into a function and what comes out of it."""

import collections
import dataclasses
import enum
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ._case import Cases, rand

CASES = Cases()
W, X = rand(4, 4) * 0.5, rand(8, 4, seed=1)


def loss(w, x, scale=1.0, *, power=2):
    return scale * jnp.mean(jnp.tanh(jnp.tanh(x @ w) @ w) ** power)


def _calls(api, *calls, **options):
    """Gradients of `loss` for several calls `(args, kwargs)` of one function."""
    differentiated = api.value_and_grad(loss, **options)
    return [differentiated(*args, **kwargs) for args, kwargs in calls]


@CASES.program
def default_arguments(api):
    return _calls(api, ((W, X), {}), ((W, X, 2.0), {}), ((W, X, jnp.float32(3)), {}), ((W, X), {}))


@CASES.program
def keyword_arguments(api):
    return _calls(api, ((W,), {"x": X}), ((W,), {"scale": 2, "x": X}), ((W, X), {"power": 3}))


@CASES.program
def keyword_only_arguments_that_are_arrays(api):
    return _calls(api, ((W, X), {"power": jnp.float32(2)}), ((W, X), {"power": np.int32(4)}))


@CASES.program
def missing_arguments_are_an_error(api):
    return api.value_and_grad(loss)(W)


@CASES.program
def unknown_keywords_are_an_error(api):
    return api.value_and_grad(loss)(W, X, depth=3)


@CASES.program
def differentiated_by_keyword_is_an_error(api):
    return api.value_and_grad(loss)(w=W, x=X)


@CASES.program
def argnums_out_of_range_is_an_error(api):
    return api.value_and_grad(loss, argnums=5)(W, X)


@CASES.program
def argnums_of_a_wrong_type_is_an_error(api):
    return api.value_and_grad(loss, argnums="w")(W, X)


@CASES.program
def argnums_of_both(api):
    return _calls(api, ((W, X), {}), argnums=(0, 1))


@CASES.program
def argnums_in_another_order(api):
    return _calls(api, ((W, X), {}), argnums=(1, 0))


@CASES.program
def argnums_in_a_list(api):
    return _calls(api, ((W, X), {}), argnums=[0])


@CASES.program
def argnums_negative(api):
    return _calls(api, ((W, X), {}), ((W, X, 1.5), {}), argnums=-1)


@CASES.program
def argnums_of_a_number(api):
    return _calls(api, ((W, X, 1.5), {}), ((W, X, 2.5), {}), argnums=2)


@CASES.loss(W, X, has_aux=True)
def aux_of_arrays(w, x):
    h = x @ w
    return (h**2).sum(), {"h": h, "x": jnp.asarray(x), "n": (h.mean(), [w * 2])}


@CASES.loss(W, has_aux=True)
def aux_that_is_no_array(w):
    return (w**2).sum(), {"name": "w", "none": None, "flag": True, "count": 3, "rate": 0.5, "kind": Kind.SECOND}


@CASES.loss(W, np.arange(3), has_aux=True)
def aux_of_numpy(w, i):
    return (w**2).sum(), (np.ones(3), np.float32(2), jnp.asarray(i), jnp.ones(2))


@CASES.loss(W, has_aux=True)
def aux_missing_is_an_error(w):
    return (w**2).sum()


@CASES.loss(W, has_aux=True)
def aux_of_three_results_is_an_error(w):
    return (w**2).sum(), 1, 2


@CASES.loss(W)
def a_tuple_without_has_aux_is_an_error(w):
    return (w**2).sum(), 1


@CASES.loss(W)
def a_result_of_shape_one_is_an_error(w):
    return (w**2).sum(keepdims=True)


@CASES.loss(W)
def an_integer_result_is_an_error(w):
    return jnp.argmax(w)


@CASES.loss(W)
def no_result_is_an_error(w):
    w.sum()


@CASES.loss(W)
def a_constant_result(w):
    return 3.0


@CASES.loss(W)
def a_constant_array_result(w):
    return jnp.float32(3.0)


@CASES.loss(W, X, argnums=1)
def an_argument_that_does_not_matter(w, x):
    return jnp.sum(w**2)


@CASES.loss("text")
def differentiated_text_is_an_error(w):
    return 1.0


@CASES.loss(True)
def a_differentiated_flag_is_an_error(w):
    return 1.0


@CASES.loss(np.array(["a"]))
def a_differentiated_array_of_text_is_an_error(w):
    return 1.0


@CASES.loss(W, X)
def shapes_that_do_not_fit_are_an_error(w, x):
    return (w @ x).sum()


@CASES.loss(W)
def an_error_of_ones_own(w):
    raise LookupError("not here")


@CASES.loss(W)
def an_assertion_on_shapes(w):
    assert w.shape == (3, 3), f"wrong shape {w.shape}"


@CASES.loss(W)
def an_unknown_name_is_an_error(w):
    return undefined(w)  # noqa: F821


class Kind(enum.Enum):
    FIRST, SECOND = 1, 2


@CASES.loss(W, "sin", Kind.SECOND, True, None, ("a", 2))
def static_arguments(w, name, kind, flag, nothing, pair):
    h = getattr(jnp, name)(w) if flag and kind is Kind.SECOND and nothing is None else w
    return h.sum() * pair[1] + len(pair[0])


@CASES.loss(W, [2, 3], {"depth": 2})
def numbers_whose_values_are_needed(w, shape, options):
    h = jnp.ones(shape)
    for _ in range(options["depth"]):
        w = jnp.sin(w)
    return w.sum() * h.sum()


@CASES.program
def flags_that_change(api):
    differentiated = api.value_and_grad(lambda w, train: jnp.sin(w).sum() if train else w.sum())
    return [differentiated(W, train) for train in (True, False, True)]


@CASES.program
def shapes_that_change(api):
    differentiated = api.value_and_grad(loss)
    return [differentiated(W, X[:n]) for n in (8, 3, 8)]


@CASES.program
def types_that_change(api):
    differentiated = api.value_and_grad(lambda w, s: (w * s).sum())
    return [differentiated(W, s) for s in (2, 2.0, np.int32(2), jnp.float32(2.0), True, np.float32(2))]


@CASES.program
def structures_that_change(api):
    differentiated = api.value_and_grad(lambda p: sum(jnp.sin(v).sum() for v in jax.tree.leaves(p)))
    return [differentiated(p) for p in ({"a": W}, {"b": W}, [W, X], (W, {"c": (X, None)}))]


@CASES.loss(W, functools.partial(jnp.multiply, 2.0), jnp.tanh)
def functions_as_arguments(w, double, activation):
    return activation(double(w)).sum()


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    weight: Any
    bias: Any
    name: str = dataclasses.field(default="layer", metadata={"static": True})


@CASES.loss(Layer(W, W[0], "sin"), X)
def dataclass_pytrees(layer, x):
    return (getattr(jnp, layer.name)(x @ layer.weight + layer.bias) ** 2).sum()


@CASES.loss(W, X, has_aux=True)
def dataclass_pytrees_as_aux(w, x):
    return (w**2).sum(), Layer(x @ w, None, "aux")


class Point(NamedTuple):
    x: Any
    y: Any = None


@CASES.loss(Point(W, Point(X)), has_aux=True)
def named_tuples(p):
    return (p.y.x @ p.x).sum(), Point(p.x.sum())


@CASES.loss({"w": W, "b": None, "layers": [W, None, (None,)]})
def none_leaves(p):
    return jnp.sin(p["w"]).sum() + (p["layers"][0] ** 2).sum()


@CASES.loss(collections.OrderedDict(b=W, a=X), has_aux=True)
def ordered_dicts(p):
    return (p["a"] @ p["b"]).sum(), collections.OrderedDict(z=p["a"].sum(), y=1)


@CASES.loss(collections.defaultdict(list, w=W))
def default_dicts(p):
    return jnp.sin(p["w"]).sum()


@CASES.loss({3: W, 1: X})
def dicts_with_numbers_as_keys(p):
    return (p[1] @ p[3]).sum()


@jax.tree_util.register_pytree_node_class
class Box:
    def __init__(self, value, tag=()):
        self.value, self.tag = value, tag

    def tree_flatten(self):
        return (self.value,), self.tag

    @classmethod
    def tree_unflatten(cls, tag, children):
        return cls(*children, tag)


@CASES.program
def pytrees_of_ones_own(api):
    value, box = api.value_and_grad(lambda box: jnp.sin(box.value).sum())(Box(W, ("tag",)))
    return value, box.value, box.tag


@CASES.program
def partial_functions(api):
    f = functools.partial(loss, power=3, scale=2.0)
    return api.value_and_grad(f)(W, X), api.value_and_grad(functools.partial(loss, W))(X)


class Model:
    factor = 2.0

    def __init__(self):
        self.x = X

    def loss(self, w):
        return jnp.tanh(self.x @ w).sum() * self.factor

    def __call__(self, w):
        return self.loss(w)

    @classmethod
    def of_class(cls, w):
        return w.sum() * cls.factor

    @staticmethod
    def of_nothing(w):
        return jnp.sin(w).sum()


@CASES.program
def methods(api):
    model = Model()
    return [api.value_and_grad(f)(W) for f in (model.loss, Model.of_class, model.of_nothing)]


@CASES.program
def callable_objects(api):
    return api.value_and_grad(Model())(W)


@CASES.program
def attributes_that_are_replaced(api):
    model = Model()
    differentiated = api.value_and_grad(model.loss)
    results = [differentiated(W)]
    model.factor = 3.0
    results.append(differentiated(W))
    model.x = X * 2
    return results + [differentiated(W)]


@CASES.program
def closures_that_are_replaced(api):
    scale = jnp.float32(2.0)

    def scaled(w):
        return loss(w, X) * scale

    differentiated = api.value_and_grad(scaled)
    results = [differentiated(W)]
    scale = jnp.float32(3.0)
    return results + [differentiated(W)]


@CASES.program
def classes_with_a_wrapped_gradient(api):
    class Trainer:
        def __init__(self):
            self.grad = api.grad(self.loss)
            self.rate = 0.1

        def loss(self, w):
            return loss(w, X) * self.rate

        def step(self, w):
            return w - self.rate * self.grad(w)

    trainer, w = Trainer(), W
    for _ in range(2):
        w = trainer.step(w)
    return w


@CASES.program
def as_a_decorator(api):
    @functools.partial(api.value_and_grad, argnums=1, has_aux=True)
    def decorated(x, w, *rest, **named):
        return loss(w, x) + sum(rest), named

    return decorated(X, W), decorated(X, W, 1.0, 2.0, name="n", flag=False)


@CASES.program
def lists_that_are_appended_to(api):
    seen = []

    def collecting(w):
        seen.append(w.shape)
        return jnp.sin(w).sum()

    api.grad(collecting)(W)
    return seen[:1]


@CASES.program
def variable_arguments(api):
    def total(*ws, **named):
        return sum(jnp.sin(w).sum() for w in ws) + sum(jnp.cos(v).sum() for v in named.values())

    differentiated = api.value_and_grad(total, argnums=(0, 1))
    return differentiated(W, X), differentiated(W, X, W, extra=X)


@CASES.program
def arguments_that_are_the_same_array(api):
    w = jnp.asarray(W)
    return api.value_and_grad(lambda a, b, c: (a @ b @ c).sum(), (0, 1))(w, w, w)


@CASES.program
def results_fed_back(api):
    differentiated, w = api.grad(loss), W
    for _ in range(3):
        w = w - 0.1 * differentiated(w, X)
    return w


@CASES.program
def arrays_on_a_device_they_are_committed_to(api):
    w = jax.device_put(W, jax.devices()[0])
    return api.value_and_grad(loss)(w, X)


@CASES.program
def names_and_docstrings(api):
    return api.grad(loss).__name__, api.value_and_grad(Model().loss).__name__


@CASES.program
def what_is_no_function_is_an_error(api):
    try:
        api.grad(3)
    except TypeError:
        return "TypeError"


@CASES.program
def objects_with_jax_array(api):
    class Wrapped:
        def __init__(self, value):
            self.value = value

        def __jax_array__(self):
            return jnp.asarray(self.value)

    return api.value_and_grad(lambda w, x: (jnp.asarray(x) @ w).sum())(W, Wrapped(X))


@CASES.program
def a_train_step_by_remat(api):
    def step(w, x, rate=0.1):
        value, grads = jax.value_and_grad(loss)(w, x)
        return w - rate * grads, {"loss": value, "rate": jnp.asarray(rate), "name": "step"}

    rematerialized, w, seen = api.remat(step), jnp.asarray(W), []
    for rate in (0.1, 0.2):
        w, aux = rematerialized(w, X, rate)
        seen.append(aux)
    return w, seen


@CASES.program
def a_function_without_results_by_remat(api):
    return api.remat(lambda w: None)(W), api.remat(lambda w: {"a": ()})(W)


@CASES.program
def a_function_without_arguments_by_remat(api):
    return api.remat(lambda: jnp.sin(jnp.asarray(X)).sum())()


@CASES.loss(W, np.array([2, 0, 1]), jnp.asarray(True))
def arrays_whose_values_are_needed(w, lengths, flag):
    h = jnp.sin(w)
    for n in np.asarray(lengths):
        h = h.at[: int(n)].multiply(2.0)
    return h.sum() if flag else w.sum()


@CASES.loss(W, np.array([2, 0, 1]))
def arrays_of_numpy_used_by_numpy(w, i):
    return (w * np.unique(i).size + np.where(i > 0, i, 1).sum()).sum()


@CASES.program
def arrays_whose_values_are_needed_and_change(api):
    differentiated = api.value_and_grad(lambda w, flag: jnp.sin(w).sum() if flag else (w**2).sum())
    return [differentiated(W, jnp.asarray(flag)) for flag in (True, False, True)]


@CASES.loss(W)
def differentiated_values_that_are_needed_by_a_static_branch(w):
    return jnp.sin(w).sum() if w.ndim == 2 and w.dtype == jnp.float32 else w.sum()


@CASES.program
def objects_that_are_changed_in_place(api):
    class Settings:
        scale = 2.0

    settings = Settings()
    differentiated = api.value_and_grad(lambda w, settings: (jnp.sin(w) * settings.scale).sum())
    results = [differentiated(W, settings)]
    settings.scale = 3.0
    return results + [differentiated(W, settings)]


@CASES.program
def aux_of_numpy_that_is_changed_in_place(api):
    differentiated = api.value_and_grad(lambda w: (jnp.sin(w).sum(), np.zeros(2)), has_aux=True)
    for _ in range(2):
        _, aux = differentiated(W)[0]
        aux += 1
    return aux


@CASES.loss(W, jnp.asarray(X), X.astype(np.float64), has_aux=True)
def aux_of_arguments(w, x, y):
    return jnp.sum(x @ w), (x, jnp.asarray(x), jnp.asarray(y), [x])
