"""The transformer on a device mesh: inside `shard_map`, with its batch or its matrices sharded."""

import equinox as eqx
import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from nn.helpers import assert_close, quick_jit, random_batch, random_model, value_and_grad

from fedeqx.nn import next_token_loss


@pytest.mark.parametrize("per_client", ["tokens", "model", "blocks", "embedding"])
def test_inside_shard_map(per_client):
    """What differs between clients: the tokens, the model, or a part of it."""
    mesh = jax.make_mesh((4,), ("clients",), axis_types=(AxisType.Auto,))
    models, batches = random_model(stack=(4,)), random_batch((4, 2, 7))
    differs = jax.tree.map(lambda _: per_client == "model", models)
    if per_client in ("blocks", "embedding"):
        part = lambda m: jax.tree.leaves(getattr(m, per_client))
        differs = eqx.tree_at(part, differs, [True] * len(part(models)))
    differs = differs, jax.tree.map(lambda _: per_client == "tokens", batches)
    args = jax.tree.map(lambda x, d: x if d else x[0], (models, batches), differs)

    def client(*args):
        model, batch = jax.tree.map(lambda x, d: x[0] if d else x, args, differs)
        loss = next_token_loss(model, batch)
        # A derivative for this client alone: of a shared leaf `shard_map` would give the sum.
        grads = jax.grad(next_token_loss)(jax.tree.map(_mark_as_own, model), batch)
        return jax.tree.map(lambda x: x[None], (loss, grads))

    specs = jax.tree.map(lambda d: P("clients") if d else P(), differs)
    run = quick_jit(jax.shard_map(client, mesh=mesh, in_specs=specs, out_specs=P("clients")))
    found = run(*args)
    for i in range(4):
        model, batch = jax.tree.map(lambda x, d, i=i: x[i] if d else x, args, differs)
        mine = jax.tree.map(lambda x, i=i: np.asarray(x)[i], found)
        assert_close(mine, value_and_grad(model, batch), rtol=1e-4, atol=1e-5)


def _mark_as_own(x):
    axes = {"clients"} - jax.typeof(x).manual_axis_type.varying
    return jax.lax.pcast(x, tuple(axes), to="varying") if axes else x


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_with_a_sharded_batch(axis_type):
    mesh = jax.make_mesh((4,), ("data",), axis_types=(axis_type,))
    model, batch = random_model(), random_batch((8, 7))
    expected = value_and_grad(model, batch)
    with jax.set_mesh(mesh):
        model = jax.device_put(model, NamedSharding(mesh, P()))
        batch = jax.device_put(batch, NamedSharding(mesh, P("data")))
        found = value_and_grad(model, batch)
    assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_with_sharded_matrices():
    mesh = jax.make_mesh((2,), ("model",), axis_types=(AxisType.Auto,))
    model, batch = random_model(), random_batch((2, 7))
    expected = value_and_grad(model, batch)
    rows = lambda m: (m.blocks.query, m.blocks.key, m.blocks.value, m.blocks.up)
    columns = lambda m: (m.blocks.output, m.blocks.down)
    for where, spec in ((rows, P(None, "model")), (columns, P(None, None, "model"))):
        place = lambda x, spec=spec: jax.device_put(x, NamedSharding(mesh, spec))
        model = eqx.tree_at(where, model, [place(x) for x in where(model)])
    with jax.set_mesh(mesh):
        found = value_and_grad(model, batch)
        text = value_and_grad.lower(model, batch).compile().as_text()
    assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert text is not None
    assert "all-reduce" in text  # it ran in parts
