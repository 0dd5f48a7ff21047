"""What every algorithm is, and the one round that they share."""

import abc
from typing import NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from ..federated import Clients, Server, client_map, program, require_at_once, stream
from ._aggregator import AbstractAggregator, AggregatorReport
from ._client_work import AbstractClientWork, ClientData, ClientReport
from ._masking import run_where
from ._optimizer import Optimizer, Params, require_optimizer, trainable


class State(eqx.Module):
    """What an algorithm carries from round to round, all of it at the server.

    - `round`: how many rounds have changed the model.
    - `model`: the server's model.
    - `aggregator`, `server`: the states of the aggregator and of the server optimizer.
    """

    round: Int[Array, ""]
    model: PyTree
    aggregator: PyTree
    server: optax.OptState


class ServerReport(NamedTuple):
    """What the server tells of its update: the L2 norm of the aggregated update."""

    update_norm: Float[Array, ""]


class Report(NamedTuple):
    """What a round tells, part by part. `client` is the weighted mean over the clients used."""

    client: ClientReport
    aggregator: AggregatorReport
    server: ServerReport


class AbstractAlgorithm(eqx.Module):
    """A federated algorithm: `init` once, then `step` once a round.

    Every float in it is an array leaf, so `eqx.filter_grad` with respect to the algorithm, through
    any number of rounds, gives hypergradients.
    """

    @abc.abstractmethod
    def init(self, model: Server[PyTree], *, key: Server[Key[Array, ""]]) -> Server[State]:
        """The state before the first round."""

    @abc.abstractmethod
    def step(
        self, state: Server[State], cohort: Clients[ClientData], *, key: Server[Key[Array, ""]]
    ) -> tuple[Server[State], Server[Report]]:
        """One round on one cohort.

        If no client has any weight, the state is returned as it was and the report says
        `clients_used = 0`.

        **Arguments:**

        - `state`: from `init` or the step before.
        - `cohort`: the data of this round's clients.
        - `key`: this round's key; a client's own is made from it and the client's `seed`.
        """

    @abc.abstractmethod
    def model(self, state: Server[State]) -> Server[PyTree]:
        """The model to evaluate or to ship."""


@final
class Round(eqx.Module):
    """Client work, aggregator and server optimizer, composed to one round.

    The shape that FedAvg, FedSGD and the adaptive methods of FedOpt share (arXiv 2003.00295). With
    `at_once`, so many clients run at a time.
    """

    work: AbstractClientWork
    aggregator: AbstractAggregator
    optimizer: Optimizer
    at_once: int | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        require_optimizer("The server", self.optimizer)
        require_at_once(type(self).__name__, self.at_once)

    def init(self, model: Server[PyTree]) -> Server[State]:
        model = jtu.tree_map(lambda x: jnp.asarray(x) if eqx.is_array(x) else x, model)
        return State(
            round=jnp.zeros((), jnp.int32),
            model=model,
            aggregator=self.aggregator.init(model),
            server=self.optimizer.init(trainable(model)),
        )

    def step(
        self, state: Server[State], cohort: Clients[ClientData], *, key: Server[Key[Array, ""]]
    ) -> tuple[Server[State], Server[Report]]:
        run = Round._run if self.at_once is None else stream(Round._run, at_once=self.at_once)
        return run(self, state, cohort, key)

    @program
    def _run(
        self, state: Server[State], cohort: Clients[ClientData], key: Server[Key[Array, ""]]
    ) -> tuple[Server[State], Server[Report]]:
        weights = self.aggregator.weigh(cohort)

        def at_client(work, model, data, round, key):
            return work.run(model, data, round=round, key=jax.random.fold_in(key, data.seed))

        results = client_map(
            at_client, self.work, state.model, cohort, state.round, key, weights=weights
        )
        (update, client), aggregator, told = self.aggregator.aggregate(
            state.aggregator, results, weights
        )

        def at_server(optimizer: Optimizer, state: State, aggregator: PyTree, update: Params):
            params, static = eqx.partition(state.model, eqx.is_inexact_array)
            # Optax descends along gradients; a client's update is a direction to go.
            gradient = jtu.tree_map(jnp.negative, update)
            params, server = optimizer.update(gradient, state.server, params, state.round)
            return State(state.round + 1, eqx.combine(params, static), aggregator, server)

        state = run_where(
            told.clients_used > 0,
            at_server,
            *(self.optimizer, state, aggregator, update),
            otherwise=state,
        )
        return state, Report(client, told, ServerReport(_norm(update)))


class AbstractRoundAlgorithm(AbstractAlgorithm):
    """An algorithm that is one `Round`, made from parts of its own choice."""

    round: eqx.AbstractVar[Round]

    def init(self, model: Server[PyTree], *, key: Server[Key[Array, ""]]) -> Server[State]:
        del key
        return self.round.init(model)

    def step(
        self, state: Server[State], cohort: Clients[ClientData], *, key: Server[Key[Array, ""]]
    ) -> tuple[Server[State], Server[Report]]:
        return self.round.step(state, cohort, key=key)

    def model(self, state: Server[State]) -> Server[PyTree]:
        return state.model


def _norm(update: Params) -> Float[Array, ""]:
    """The L2 norm in float32, with derivative 0 (not NaN) where the update is 0."""
    squares = [jnp.sum(jnp.square(u.astype(jnp.float32))) for u in jtu.tree_leaves(update)]
    total = sum(squares, start=jnp.zeros((), jnp.float32))
    return jnp.where(total == 0, 0.0, jnp.sqrt(jnp.where(total == 0, 1.0, total)))
