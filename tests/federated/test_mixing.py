"""Nothing mixes clients outside of the `fed_*` primitives, whatever transformations are composed.

Each program is traced, and its jaxpr interpreted with and without a perturbation of one client's
data; `helpers/_mixing.py` says what is proved.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import pytest
from federated.helpers import CASES, Case, Checker, ClientsMixError

import fedeqx as fx

CLIENTS, J = 13, 5  # no other axis of the cases is 13 long

Cases = dict[str, Case]
BY_NAME: Cases = {case.name: case for case in CASES}


def perturbed(case: Case) -> tuple[Any, Any]:
    """Sample arguments, and the same ones with client J's data from another sample."""
    clean, other = case.sample(CLIENTS), case.sample(CLIENTS, seed=1)

    def swap(x: Any, y: Any) -> Any:
        if not isinstance(x, fx.Clients):
            return x
        return jtu.tree_map(lambda a, b: a.at[J].set(b[J]), x, y)

    return clean, jtu.tree_map(swap, clean, other, is_leaf=lambda x: isinstance(x, fx.Clients))


def prove(fn: Callable[..., Any], clean: Any, moved: Any) -> Checker:
    """Raises `ClientsMixError` if clients mix in `fn`, a function of one tree of arrays."""
    jaxpr = jax.make_jaxpr(fn)(clean)
    pairs = [
        (x, x) if jnp.array_equal(x, y, equal_nan=jnp.issubdtype(x.dtype, jnp.inexact)) else (x, y)
        for x, y in zip(jtu.tree_leaves(clean), jtu.tree_leaves(moved), strict=True)
    ]
    assert any(x is not y for x, y in pairs), "the perturbation changed nothing"
    checker = Checker(CLIENTS, J)
    checker.run(jaxpr, pairs)
    assert checker.differing > 0
    return checker


def arrays_only(case: Case) -> tuple[Callable[[Any], Any], Any, Any]:
    """The program as a function of its array leaves, clean ones, and perturbed ones."""
    clean, moved = perturbed(case)
    arrays, rest = eqx.partition(clean, eqx.is_array)
    result = lambda arrays: eqx.filter(case.program(*eqx.combine(arrays, rest)), eqx.is_array)
    return result, arrays, eqx.filter(moved, eqx.is_array)


def scalar_of_floats(case: Case, at_clients: bool = True) -> tuple[Callable[..., Any], Any, Any]:
    """A number made of the program's results, as a function of (differentiable leaves, the rest).

    Results at the clients are reduced by `reduce_sum`: by hand would be mixing. With `at_clients`
    false, only leaves at the server are differentiable.
    """
    clean, moved = perturbed(case)
    inexact, rest = _split(clean, case, at_clients)
    moved_inexact, moved_rest = _split(moved, case, at_clients)
    arrays, static = eqx.partition(rest, eqx.is_array)

    def total(inexact: Any, arrays: Any) -> Any:
        result = case.program(*eqx.combine(inexact, eqx.combine(arrays, static)))
        at_server = jtu.tree_map(
            lambda x: fx.reduce_sum(x) if isinstance(x, fx.Clients) else x,
            result,
            is_leaf=lambda x: isinstance(x, fx.Clients),
        )
        leaves = [x for x in jtu.tree_leaves(at_server) if jnp.issubdtype(x.dtype, jnp.floating)]
        return sum(jnp.sum(x.astype(jnp.float32) ** 2) for x in leaves)

    moved_arrays = eqx.filter(moved_rest, eqx.is_array)
    return total, (inexact, arrays), (moved_inexact, moved_arrays)


def _split(arguments: Any, case: Case, at_clients: bool) -> tuple[Any, Any]:
    chosen = [
        i in case.differentiable and (at_clients or not isinstance(argument, fx.Clients))
        for i, argument in enumerate(arguments)
    ]
    which = tuple(
        jtu.tree_map(lambda x, on=on: on and eqx.is_inexact_array(x), argument)
        for on, argument in zip(chosen, arguments, strict=True)
    )
    return eqx.partition(arguments, which)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_values(case):
    prove(*arrays_only(case))


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.differentiable], ids=lambda case: case.name
)
def test_gradients(case):
    total, clean, moved = scalar_of_floats(case)
    checker = prove(lambda both: jax.value_and_grad(total)(*both), clean, moved)
    assert checker.reductions > 0


def _tangents(tree: Any) -> Any:
    return jtu.tree_map(jnp.ones_like, tree)


COMPOSITIONS: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "jvp": lambda f: lambda x, r: jax.jvp(lambda x: f(x, r), (x,), (_tangents(x),)),
    "linearize": lambda f: lambda x, r: jax.linearize(lambda x: f(x, r), x)[1](_tangents(x)),
    "hessian-vector": lambda f: (
        lambda x, r: jax.jvp(lambda x: jax.grad(f)(x, r), (x,), (_tangents(x),))
    ),
    "grad of grad": lambda f: jax.grad(
        lambda x, r: sum(jnp.vdot(g, g) for g in jtu.tree_leaves(jax.grad(f)(x, r)))
    ),
    "jit of grad of checkpoint": lambda f: jax.jit(jax.grad(jax.checkpoint(f))),
}
FORWARD = ("masked_loss", "net_loss", "personalized", "uneven_round", "dropout_mean")


@pytest.mark.parametrize("composition", COMPOSITIONS)
@pytest.mark.parametrize("name", FORWARD)
def test_compositions(name, composition):
    # What sums over squared gradients must not meet gradients of clients' data.
    total, clean, moved = scalar_of_floats(BY_NAME[name], at_clients=composition != "grad of grad")
    prove(lambda both: COMPOSITIONS[composition](total)(*both), clean, moved)


def test_hessian():
    total, clean, moved = scalar_of_floats(BY_NAME["mean_loss"], at_clients=False)
    prove(lambda both: jax.hessian(total)(*both), clean, moved)


@pytest.mark.parametrize("jacobian", [jax.jacfwd, jax.jacrev])
def test_jacobians_from_clients_to_clients(jacobian):
    clean, moved = perturbed(BY_NAME["standardize"])
    prove(lambda arguments: jacobian(BY_NAME["standardize"].program)(*arguments), clean, moved)


@pytest.mark.parametrize("name", ["net_loss", "extremes", "uneven_round"])
def test_vmap_of_value_and_grad(name):
    """The mapped axis stands behind the clients axis of data and before a server value."""
    total, clean, moved = scalar_of_floats(BY_NAME[name])
    axes = jtu.tree_map(
        lambda x: 1 if x.ndim > 0 and x.shape[0] == CLIENTS else 0, clean[0], is_leaf=eqx.is_array
    )
    spread = lambda tree: jtu.tree_map(lambda x, axis: jnp.stack([x, 2 * x, -x], axis), tree, axes)
    fn = lambda both: jax.vmap(jax.value_and_grad(total), (axes, None), (0, axes))(*both)
    prove(fn, (spread(clean[0]), clean[1]), (spread(moved[0]), moved[1]))


Rogue = Callable[[fx.Clients[Any]], Any]
ROGUES: dict[str, Rogue] = {
    "a sum by hand": lambda c: jnp.sum(c.value, axis=0),
    "a neighbour's row": lambda c: fx.Clients(jnp.roll(c.value, 1, axis=0)),
    "a product over clients": lambda c: fx.Clients(c.value @ c.value.T),
    "a sorted cohort": lambda c: fx.Clients(jnp.sort(c.value, axis=0)),
    "a row sent to all": lambda c: fx.broadcast(c.value[J], like=c),
    "the cohort closed over": lambda c: fx.client_map(lambda x: x + jnp.sum(c.value), c),
    "rows in a scan": lambda c: jax.lax.scan(lambda s, x: (s + x, s), jnp.zeros(3), c.value)[0],
    "a branch": lambda c: jax.lax.cond(c.value[J, 0] > 0, lambda: 1.0, lambda: 2.0),
    "a loop": lambda c: jax.lax.while_loop(lambda i: i < c.value[J, 0], lambda i: i + 1.0, -9.0),
    "inside jit and checkpoint": jax.jit(jax.checkpoint(lambda c: c.value / jnp.sum(c.value))),
    "in the gradient alone": lambda c: jax.grad(
        lambda v: jnp.sum(jax.lax.stop_gradient(v)[::-1] * v)
    )(c.value),
}


@pytest.mark.parametrize("rogue", ROGUES)
def test_the_checker_catches(rogue):
    """A proof that cannot fail is none: each of these mixes clients by hand."""
    clean, moved = perturbed(BY_NAME["extremes"])
    with pytest.raises(ClientsMixError):
        prove(lambda arguments: ROGUES[rogue](*arguments), clean, moved)


def test_the_checker_lets_rows_pass():
    clean, moved = perturbed(BY_NAME["extremes"])
    own = lambda arguments: jax.tree.map(lambda v: jnp.sum(jnp.sin(v), axis=1), arguments)
    prove(own, clean, moved)
