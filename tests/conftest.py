"""Test set-up: eight simulated devices, strict promotion, run-time type checks on."""

import os

# Before JAX is imported anywhere: XLA reads its flags once, when a backend starts.
_FLAGS = (
    "--xla_force_host_platform_device_count=8",
    # The tests compile thousands of small programs, each of which runs once: less optimization of
    # the machine code costs nothing there and makes compilation about three times as fast.
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
)
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *_FLAGS]).strip()
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
