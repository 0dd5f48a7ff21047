"""The convolutional network of the FedAvg paper."""

from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


@final
class CNN(eqx.Module):
    """Two 5x5 convolutions, each with ReLU and 2x2 max pooling, then 512 hidden units.

    The CNN of McMahan et al. 2017 (https://arxiv.org/abs/1602.05629), 1,663,370 parameters on
    28x28 grey images and 10 classes.

    **Arguments:**

    - `image_shape`: channels, height and width of an image; height and width at least 4.
    - `num_classes`: number of classes.
    - `key`: PRNG key of the initial parameters.

    ```python
    >>> model = CNN((1, 28, 28), 10, key=jax.random.key(0))
    >>> model(jnp.zeros((1, 28, 28))).shape
    (10,)

    ```
    """

    conv1: eqx.nn.Conv2d
    conv2: eqx.nn.Conv2d
    hidden: eqx.nn.Linear
    output: eqx.nn.Linear

    def __init__(
        self, image_shape: tuple[int, int, int], num_classes: int, *, key: PRNGKeyArray
    ) -> None:
        channels, height, width = image_shape
        if height < 4 or width < 4:
            raise ValueError(
                f"`image_shape` is {image_shape}: two poolings leave nothing of {height}x{width} "
                "pixels; give (channels, height, width) with height and width at least 4."
            )
        keys = jax.random.split(key, 4)
        self.conv1 = eqx.nn.Conv2d(channels, 32, 5, padding="SAME", key=keys[0])
        self.conv2 = eqx.nn.Conv2d(32, 64, 5, padding="SAME", key=keys[1])
        self.hidden = eqx.nn.Linear(64 * (height // 4) * (width // 4), 512, key=keys[2])
        self.output = eqx.nn.Linear(512, num_classes, key=keys[3])

    def __call__(self, image: Float[Array, "channels height width"]) -> Float[Array, " classes"]:
        """The logits of one image.

        **Arguments:**

        - `image`: one image of the declared shape.

        **Returns:** one logit a class.
        """
        x = _max_pool(jax.nn.relu(self.conv1(image)))
        x = _max_pool(jax.nn.relu(self.conv2(x)))
        return self.output(jax.nn.relu(self.hidden(x.reshape(-1))))


def _max_pool(x: Float[Array, "c h w"]) -> Float[Array, "c h2 w2"]:
    """The maximum of each 2x2 square; an odd last row or column is dropped."""
    # Not `reduce_window`: its transpose (select and scatter) is slow on a CPU, and has no
    # derivative of its own for a Hessian.
    c, h, w = x.shape
    x = x[:, : h // 2 * 2, : w // 2 * 2].reshape(c, h // 2, 2, w // 2, 2)
    return jnp.max(x, axis=(2, 4))
