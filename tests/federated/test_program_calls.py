"""`program` as a decorator: what binds across a call, and the ways to write and call functions."""

import functools
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from federated.helpers.late import LATE, late_mean, undefined_name
from jaxtyping import Array, Float, Int

import fedeqx as fx
from fedeqx import Clients, Server, broadcast, client_map, cohort_size, program, reduce_mean

N = 5
Vector = Float[Array, "features"]
Scalar = Float[Array, ""]


def at(*shape: int, n: int = N) -> fx.Clients[Any]:
    return fx.Clients(jnp.ones((n, *shape)))


ones = jnp.ones
# Given where the other placement belongs; pyright would know better.
SERVER_VALUE: Any = jnp.ones(3)
CLIENTS_VALUE: Any = at()


# Names of axes, and the cohort size, bind across the arguments and the result.


@fx.program
def predict(
    w: fx.Server[Float[Array, "features labels"]], x: fx.Clients[Float[Array, "batch features"]]
) -> fx.Clients[Float[Array, "batch labels"]]:
    return fx.client_map(lambda w, x: x @ w, w, x)


def test_axes_bind_across_arguments():
    assert predict(ones((3, 2)), at(4, 3)).value.shape == (N, 4, 2)
    with pytest.raises(TypeError, match=r"argument 'x'.*\n(.*\n)*.*features"):
        predict(ones((2, 3)), at(4, 3))


def test_axes_bind_between_arguments_and_result():
    @fx.program
    def transposed(x: fx.Clients[Float[Array, "a b"]]) -> fx.Clients[Float[Array, "b a"]]:
        return x

    transposed(at(3, 3))
    with pytest.raises(TypeError, match="the result"):
        transposed(at(3, 2))


def test_axes_do_not_bind_across_calls():
    predict(ones((3, 2)), at(4, 3))
    predict(ones((5, 1)), at(2, 5))


def test_one_cohort_size_across_arguments():
    @fx.program
    def fn(x: fx.Clients[Any], y: dict[str, fx.Clients[Any]]) -> None:
        return None

    fn(at(), {"a": at(2)})
    with pytest.raises(ValueError, match="fn") as info:
        fn(at(), {"a": at(2), "b": at(n=6)})
    assert all(word in str(info.value) for word in ("'x'", "['b']", "5", "6"))


def test_one_cohort_size_between_arguments_and_result():
    @fx.program
    def fn(x: fx.Clients[Vector]) -> fx.Clients[Vector]:
        return fx.Clients(x.value[:3])

    for call in (fn, jax.jit(fn)):
        with pytest.raises(ValueError, match="the result") as info:
            call(at(2))
        assert "3" in str(info.value)


def test_ragged_cohorts_from_tree_map_are_refused():
    ragged = eqx.tree_at(lambda c: c.value["b"], fx.Clients({"a": ones(2), "b": ones(2)}), ones(3))

    @fx.program
    def fn(x: fx.Clients[Any]) -> None:
        return None

    with pytest.raises(ValueError, match=r"\['a'\].*\['b'\]"):
        fn(ragged)


def test_a_cohort_inside_of_an_unannotated_argument_counts():
    @fx.program
    def fn(x: fx.Clients[Any], state):
        return x

    with pytest.raises(ValueError, match="'state'"):
        fn(at(), {"controls": at(n=4)})


def test_a_union_leaves_no_binding_of_the_option_that_failed():
    """The first option binds `a` to 3 before it fails; `y` must be free to have another `a`."""

    @fx.program
    def fn(
        x: fx.Clients[tuple[Float[Array, "a"], Int[Array, "b"]]]
        | fx.Clients[tuple[Float[Array, "c"], Float[Array, "b"]]],
        y: fx.Server[Float[Array, "a"]],
    ) -> None:
        return None

    fn(fx.Clients((ones((N, 3)), ones((N, 2)))), ones(7))
    fn(fx.Clients((ones((N, 3)), ones((N, 2), int))), ones(3))
    with pytest.raises(TypeError, match="argument 'y'"):
        fn(fx.Clients((ones((N, 3)), ones((N, 2), int))), ones(7))


# Ways to pass arguments.


def test_keywords_defaults_and_stars():
    @fx.program
    def fn(
        a: fx.Server[Vector],
        /,
        b: fx.Clients[Vector],
        *rest: fx.Clients[Scalar],
        scale: fx.Server[Vector] = jnp.ones(3),  # noqa: B008
        **named: fx.Server[Scalar],
    ) -> fx.Server[int]:
        return 1 + len(rest) + len(named)

    assert fn(ones(3), at(3)) == 1
    assert fn(ones(3), at(3), at(), at(), c=ones(()), scale=ones(3)) == 4
    assert fn(ones(3), b=at(3)) == 1
    with pytest.raises(TypeError, match=r"argument 'rest\[1\]'"):
        fn(ones(3), at(3), at(), at(2))
    with pytest.raises(TypeError, match="argument 'c'"):
        fn(ones(3), at(3), c=CLIENTS_VALUE)
    with pytest.raises(TypeError, match="argument 'scale'"):
        fn(ones(3), at(3), scale=ones(2))


def test_a_default_is_an_argument_like_any_other():
    """Its axes bind, so one that does not fit the other arguments is found at the boundary."""

    @fx.program
    def fn(x: fx.Clients[Vector], scale: fx.Server[Vector] = jnp.ones(3)) -> None:  # noqa: B008
        return None

    fn(at(3))
    with pytest.raises(TypeError, match="argument 'scale'"):
        fn(at(4))


@pytest.mark.parametrize("args", [(), (1, 2, 3)])
def test_a_wrong_call_is_pythons_own_error(args):
    with pytest.raises(TypeError, match="argument"):
        predict(*args)


def test_methods_static_and_class_methods():
    class Learner(eqx.Module):
        scale: Array

        @fx.program
        def mean(self, x: fx.Clients[Vector]) -> fx.Server[Vector]:
            return self.scale * fx.reduce_mean(x)

        @staticmethod
        @fx.program
        def total(x: fx.Clients[Vector]) -> fx.Server[Vector]:
            return fx.reduce_sum(x)

        @classmethod
        @fx.program
        def first(cls, x: fx.Clients[Vector]) -> fx.Server[Vector]:
            return fx.reduce_max(x)

    learner = Learner(jnp.float32(2))
    assert jnp.array_equal(learner.mean(at(3)), 2 * ones(3))
    assert jnp.array_equal(eqx.filter_jit(learner.mean)(at(3)), 2 * ones(3))
    assert jnp.array_equal(Learner.total(at(3)), N * ones(3))
    assert jnp.array_equal(Learner.first(at(3)), ones(3))
    for method in (learner.mean, learner.total, Learner.first):
        with pytest.raises(TypeError, match="argument 'x'"):
            method(SERVER_VALUE)


def test_it_keeps_the_functions_signature_and_name():
    assert predict.__name__ == "predict"
    assert list(inspect.signature(predict).parameters) == ["w", "x"]
    assert predict.__module__ == __name__
    compiled = jax.jit(predict, static_argnames=())
    assert compiled(w=ones((3, 2)), x=at(4, 3)).value.shape == (N, 4, 2)


def test_wrapped_functions_are_checked():
    """`jit` and `checkpoint` under the decorator keep the annotations of what they wrap."""
    for wrapper in (jax.jit, jax.checkpoint, eqx.filter_jit):

        @fx.program
        @wrapper
        def fn(x: fx.Clients[Vector]) -> fx.Server[Vector]:
            return fx.reduce_mean(x)

        fn(at(3))
        with pytest.raises(TypeError, match="argument 'x'"):
            fn(SERVER_VALUE)


def test_partial_functions_are_checked():
    def fn(scale: fx.Server[Scalar], x: fx.Clients[Vector]) -> fx.Server[Vector]:
        return scale * fx.reduce_mean(x)

    half = fx.program(functools.partial(fn, jnp.float32(0.5)))
    assert jnp.array_equal(half(at(3)), 0.5 * ones(3))
    with pytest.raises(TypeError, match="argument 'x'"):
        half(SERVER_VALUE)


def test_annotations_may_be_strings():
    assert jnp.array_equal(late_mean(at(3)), ones(3))
    assert jnp.array_equal(jax.jit(LATE.method)(at(3)), ones(3))
    for fn in (late_mean, LATE.method):
        with pytest.raises(TypeError, match="argument 'x'"):
            fn(SERVER_VALUE)


def test_a_string_that_names_nothing_says_what_to_do():
    with pytest.raises(NameError, match=r"undefined_name.*annotations"):
        undefined_name(at(3))


def test_a_program_without_annotations_checks_cohort_sizes_alone():
    @fx.program
    def fn(x, y):
        return fx.reduce_sum(x)

    fn(at(3), ones(7))
    with pytest.raises(ValueError, match="argument 'y'"):
        fn(at(3), at(3, n=4))


# Programs in programs, and in threads.


def test_nested_programs_bind_their_own_axes():
    @fx.program
    def inner(x: fx.Clients[Float[Array, "n"]]) -> fx.Server[Float[Array, "n"]]:
        return fx.reduce_mean(x)

    @fx.program
    def outer(x: fx.Clients[Float[Array, "n"]]) -> fx.Server[Float[Array, "n"]]:
        wider = fx.client_map(lambda x: jnp.concatenate([x, x]), x)
        return inner(wider)[: x.value.shape[1]]

    assert outer(at(3)).shape == (3,)


def test_a_client_may_call_a_program_of_its_own():
    """`n` inside is one client's, and the error names the inner program."""

    @fx.program
    def squared(x: fx.Server[Float[Array, "n"]]) -> fx.Server[Float[Array, ""]]:
        return x @ x

    @fx.program
    def outer(x: fx.Clients[Float[Array, "m n"]]) -> fx.Clients[Float[Array, "m"]]:
        return fx.client_map(jax.vmap(squared), x)

    assert outer(at(2, 3)).value.shape == (N, 2)
    with pytest.raises(TypeError, match="squared"):
        fx.client_map(squared, at(2, 3))


def test_recursion():
    @fx.program
    def halving(x: fx.Clients[Float[Array, "n"]]) -> fx.Server[Scalar]:
        n = x.value.shape[1]
        if n == 1:
            return fx.reduce_mean(x)[0]
        return halving(fx.client_map(lambda x: x[: n // 2] + x[n // 2 :], x))

    assert halving(at(8)) == 8


def test_several_programs_at_once_from_several_threads():
    """Each call has its own axes and cohort size; a barrier makes the calls overlap."""
    threads = 4
    barrier = threading.Barrier(threads, timeout=60)

    def work(i: int) -> Any:
        n, features = 3 + i, 2 + i

        @fx.program
        def fn(
            model: fx.Server[Vector], x: fx.Clients[Vector]
        ) -> fx.Server[tuple[Vector, Int[Array, ""]]]:
            barrier.wait()
            mean = fx.reduce_mean(fx.client_map(lambda m, x: m * x * (i + 1), model, x))
            barrier.wait()
            return mean, fx.cohort_size(x)

        results = [
            jax.jit(fn)(ones(features), at(features, n=n)),
            fn(ones(features), at(features, n=n)),
        ]
        with pytest.raises(TypeError, match="argument 'x'"):
            fn(ones(features), at(features + 1, n=n))
        return results

    with ThreadPoolExecutor(threads) as pool:
        for i, results in enumerate(pool.map(work, range(threads))):
            for mean, size in results:
                assert jnp.array_equal(mean, (i + 1) * ones(2 + i))
                assert size == 3 + i


def test_names_imported_directly_work():
    """No module is patched during a call: imported names are the operations themselves."""

    @program
    def fn(scale: Server[Scalar], x: Clients[Vector]) -> Server[Vector]:
        sent = broadcast(scale, like=x)
        return reduce_mean(client_map(lambda s, x: s * x, sent, x)) + cohort_size(x).astype(float)

    assert jnp.array_equal(fn(jnp.float32(2), at(3)), 7 * ones(3))


class State(NamedTuple):
    model: Vector
    controls: fx.Clients[Vector]


def test_a_named_tuple_may_hold_both_placements():
    @fx.program
    def fn(state: State, x: fx.Clients[Vector]) -> State:
        return state._replace(model=fx.reduce_mean(x))

    fn(State(ones(3), at(3)), at(3))
    with pytest.raises(TypeError, match=r"state'\.controls"):
        fn(State(ones(3), SERVER_VALUE), at(3))
    with pytest.raises(TypeError, match=r"state'\.controls"):
        fn(State(ones(3), at(4)), at(3))
    with pytest.raises(ValueError, match=r"state'\.controls"):
        fn(State(ones(3), at(3, n=4)), at(3))
