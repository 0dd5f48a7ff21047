"""Optimizers whose hyperparameters are leaves: differentiable, sweepable, never recompiled."""

from collections.abc import Callable
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import optax
from jaxtyping import Array, Int, PyTree

Params = PyTree[Array | None]


@final
class Optimizer(eqx.Module):
    """Any Optax optimizer, given as the function that makes it and its hyperparameters.

    Floats become array leaves of this module, so a gradient with respect to the module is the
    hypergradient. A hyperparameter may be a schedule, a function of the step: it is evaluated at
    the step that `update` is told, and so goes on where a client's optimizer, made anew in each
    round, would start again.

    **Arguments:**

    - `make`: a function such as `optax.adam` that returns an `optax.GradientTransformation`.
    - `**hyperparameters`: its arguments, by name. Floats become leaves, schedules are evaluated,
        all else (booleans, integers, strings) is passed on as it is.

    ```python
    Optimizer(optax.adam, learning_rate=1e-3, b1=0.9)
    ```
    """

    make: Callable[..., optax.GradientTransformation] = eqx.field(static=True)
    hyperparameters: dict[str, Any]

    def __init__(self, make: Callable[..., optax.GradientTransformation], **hyperparameters: Any):
        if isinstance(make, optax.GradientTransformation):
            raise TypeError(
                "Optimizer needs the function that makes an optimizer and its hyperparameters, "
                "such as Optimizer(optax.sgd, learning_rate=0.1), but got one already made; its "
                "hyperparameters can be neither differentiated nor changed."
            )
        self.make = make
        self.hyperparameters = {
            name: jnp.asarray(value, jnp.result_type(float)) if _is_rate(name, value) else value
            for name, value in hyperparameters.items()
        }

    def init(self, params: Params) -> optax.OptState:
        """The optimizer's state for these parameters."""
        with jax.numpy_dtype_promotion("standard"):
            return self.make(**self._at(jnp.zeros((), jnp.int32))).init(params)

    def update(
        self, grads: Params, state: optax.OptState, params: Params, step: Int[Array, ""]
    ) -> tuple[Params, optax.OptState]:
        """One step: the new parameters and the new state, in the dtypes of the old ones."""

        def update(hyperparameters, grads, state, params):
            updates, new = self.make(**hyperparameters).update(grads, state, params)
            # Unlike a Python float, an array of float32 would make a bfloat16 moment a float32.
            return optax.apply_updates(params, updates), jtu.tree_map(_in_dtype_of, new, state)

        with jax.numpy_dtype_promotion("standard"):
            hyperparameters = self._at(step)
        return _mixing_dtypes(update)(hyperparameters, grads, state, params)

    def _at(self, step: Int[Array, ""]) -> dict[str, Any]:
        return {
            name: value(step) if callable(value) else value
            for name, value in self.hyperparameters.items()
        }


def require_optimizer(where: str, found: Any) -> None:
    if not isinstance(found, Optimizer):
        raise TypeError(
            f"{where} needs an Optimizer, such as Optimizer(optax.sgd, learning_rate=0.1), but got "
            f"a {type(found).__name__}; an Optimizer has hyperparameters that are leaves."
        )


def _mixing_dtypes(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` under standard dtype promotion, and its derivative too; it closes over no tracer.

    Optax mixes dtypes (a Python float with bfloat16, a counter with float32) by design. Derivatives
    are taken later, outside of any block here, and that of `b1 ** count` mixes dtypes as well.
    """

    @eqx.filter_custom_jvp
    def mixing(*args: Any) -> Any:
        with jax.numpy_dtype_promotion("standard"):
            return fn(*args)

    @mixing.def_jvp
    def derivative(primals: Any, tangents: Any) -> Any:
        with jax.numpy_dtype_promotion("standard"):
            return eqx.filter_jvp(fn, primals, tangents)

    return mixing


def _in_dtype_of(new: Any, old: Any) -> Any:
    return new.astype(old.dtype) if eqx.is_array(new) and eqx.is_array(old) else new


def _is_rate(name: str, value: Any) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return name == "learning_rate"  # other integers are sizes and counts, fixed while tracing
    return isinstance(value, float)


def trainable(model: PyTree) -> Params:
    """The floating-point arrays of a model, `None` for all else."""
    return eqx.filter(model, eqx.is_inexact_array)
