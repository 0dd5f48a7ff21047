import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from nn.helpers import apply, assert_close, quick_jit, random_like

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


def _random_model(shape, num_classes, stack=()):
    model = eqx.filter_eval_shape(CNN, shape, num_classes, key=jax.random.key(0))
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct((*stack, *x.shape), x.dtype), model)
    return random_like(shapes, scale=0.1)


def test_has_the_parameters_of_the_paper():
    model = eqx.filter_eval_shape(CNN, (1, 28, 28), 10, key=jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(model)) == 1_663_370


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 6)])
def test_agrees_with_numpy(shape):
    model = _random_model(shape, 10)
    image = random_like(jax.ShapeDtypeStruct(shape, jnp.float32))
    np.testing.assert_allclose(apply(model, image), _reference(model, image), rtol=1e-5, atol=1e-5)


def test_each_client_has_its_own_gradient():
    models = _random_model((1, 8, 8), 3, stack=(2,))
    images = random_like(jax.ShapeDtypeStruct((2, 5, 1, 8, 8), jnp.float32))
    grad = jax.grad(lambda model, images: jnp.mean(jnp.square(jax.vmap(model)(images))))
    together = quick_jit(jax.vmap(grad))(models, images)
    for i in range(2):
        model, expected = jax.tree.map(lambda x, i=i: x[i], (models, together))
        assert_close(quick_jit(grad)(model, images[i]), expected, rtol=1e-4, atol=1e-5)


def test_an_image_too_small_to_pool_is_named(getkey):
    with pytest.raises(ValueError, match="3x28"):
        CNN((1, 3, 28), 10, key=getkey())
