"""Aggregators: how the clients' updates become one at the server."""

import abc
from typing import Literal, NamedTuple, TypeVar, final

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from ..federated import Clients, Server, client_map, reduce_mean, reduce_sum
from ._client_work import ClientData

T = TypeVar("T")


class AggregatorReport(NamedTuple):
    """What an aggregator tells of a round.

    - `clients_used`: how many clients had a weight other than 0.
    - `total_weight`: the sum of the weights.
    """

    clients_used: Int[Array, ""]
    total_weight: Float[Array, ""]


class AbstractAggregator(eqx.Module):
    """Weighs the clients and brings their values to the server."""

    @abc.abstractmethod
    def init(self, model: Server[PyTree]) -> Server[PyTree]:
        """The state that this aggregator carries from round to round."""

    @abc.abstractmethod
    def weigh(self, data: Clients[ClientData]) -> Clients[Float[Array, ""]]:
        """Each client's weight; one of weight 0 takes no part in the round."""

    @abc.abstractmethod
    def aggregate(
        self, state: Server[PyTree], values: Clients[T], weights: Clients[Float[Array, ""]]
    ) -> tuple[Server[T], Server[PyTree], Server[AggregatorReport]]:
        """Returns the aggregate, the new state and a report."""


@final
class WeightedMean(AbstractAggregator):
    """The mean of the updates, each client weighted by its number of examples, or all alike.

    **Arguments:**

    - `by`: `"examples"`, as FedAvg weighs (arXiv 1602.05629), or `"clients"`: every client that has
        any example counts once.
    """

    by: Literal["examples", "clients"] = eqx.field(static=True, default="examples")

    def __check_init__(self):
        if self.by not in ("examples", "clients"):
            raise ValueError(f"WeightedMean(by={self.by!r}): choose 'examples' or 'clients'.")

    def init(self, model: Server[PyTree]) -> Server[PyTree]:
        del model
        return None

    def weigh(self, data: Clients[ClientData]) -> Clients[Float[Array, ""]]:
        def weight(data: ClientData) -> Float[Array, ""]:
            examples = data.num_examples.astype(jnp.float32)
            return examples if self.by == "examples" else (examples != 0).astype(jnp.float32)

        return client_map(weight, data)

    def aggregate(
        self, state: Server[PyTree], values: Clients[T], weights: Clients[Float[Array, ""]]
    ) -> tuple[Server[T], Server[PyTree], Server[AggregatorReport]]:
        mean = reduce_mean(values, weights=weights)
        # Counted in float32, so that it travels with the weights in one reduction.
        used = client_map(lambda weight: (weight != 0).astype(jnp.float32), weights)
        count, total = reduce_sum(Clients((used.value, weights.value)))
        return mean, state, AggregatorReport(count.astype(jnp.int32), total)
