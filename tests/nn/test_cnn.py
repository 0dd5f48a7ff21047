import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedeqx.nn import CNN


def _reference(model, image):
    def conv(layer, x):
        weight, bias = np.asarray(layer.weight), np.asarray(layer.bias)
        padded = np.pad(x, ((0, 0), (2, 2), (2, 2)))
        out = np.zeros((weight.shape[0], *x.shape[1:]))
        for row in range(x.shape[1]):
            for column in range(x.shape[2]):
                patch = padded[:, row : row + 5, column : column + 5]
                out[:, row, column] = (weight * patch).sum((1, 2, 3)) + bias[:, 0, 0]
        return np.maximum(out, 0)

    def pool(x):
        rows, columns = x.shape[1] // 2, x.shape[2] // 2
        cells = [
            [x[:, 2 * r : 2 * r + 2, 2 * c : 2 * c + 2].max((1, 2)) for c in range(columns)]
            for r in range(rows)
        ]
        return np.moveaxis(np.array(cells), 2, 0)

    x = pool(conv(model.conv2, pool(conv(model.conv1, np.asarray(image))))).reshape(-1)
    x = np.maximum(np.asarray(model.hidden.weight) @ x + np.asarray(model.hidden.bias), 0)
    return np.asarray(model.output.weight) @ x + np.asarray(model.output.bias)


def test_has_the_parameters_of_the_paper(getkey):
    model = eqx.filter_eval_shape(lambda k: CNN((1, 28, 28), 10, key=k), getkey())
    arrays = eqx.filter(model, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
    assert sum(leaf.size for leaf in jax.tree.leaves(arrays)) == 1_663_370


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 6)])
def test_agrees_with_numpy(getkey, shape):
    model = CNN(shape, 10, key=getkey())
    image = jax.random.normal(getkey(), shape)
    np.testing.assert_allclose(eqx.filter_jit(model)(image), _reference(model, image), atol=1e-5)


def test_each_client_has_its_own_gradient(getkey):
    make = lambda key: CNN((1, 8, 8), 3, key=key)
    models = eqx.filter_vmap(make)(jax.random.split(getkey(), 2))
    images = jax.random.normal(getkey(), (2, 5, 1, 8, 8))

    @eqx.filter_grad
    def grad(model, images):
        return jnp.mean(jnp.square(jax.vmap(model)(images)))

    together = eqx.filter_jit(eqx.filter_vmap(grad))(models, images)
    single = eqx.filter_jit(grad)
    for i in range(2):
        model, expected = jax.tree.map(
            lambda x, i=i: x[i] if eqx.is_array(x) else x, (models, together)
        )
        found = jax.tree.leaves(single(model, images[i]))
        for x, y in zip(found, jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def test_an_image_too_small_to_pool_is_named(getkey):
    with pytest.raises(ValueError, match="3x28"):
        CNN((1, 3, 28), 10, key=getkey())
