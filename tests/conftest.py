"""Test set-up: eight simulated devices, strict promotion, run-time type checks on."""

import os

# Before JAX is imported anywhere: XLA reads its flags once, when a backend starts.
_FLAG = "--xla_force_host_platform_device_count=8"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jaxtyping  # noqa: E402

jaxtyping.install_import_hook("fedeqx", "beartype.beartype")

import itertools  # noqa: E402

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def getkey():
    """A function that returns a fresh PRNG key at each call, the same ones in every run."""
    counter = itertools.count()
    return lambda: jax.random.key(next(counter))
