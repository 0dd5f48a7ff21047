"""FedAvg: local steps, averaged (arXiv 1602.05629)."""

from typing import final

import optax
from jaxtyping import Array, Key, PyTree

from ..federated import Clients, Server
from ._aggregator import AbstractAggregator, WeightedMean
from ._algorithm import AbstractAlgorithm, Report, Round, State
from ._client_work import ClientData, LocalSGD, Loss
from ._optimizer import Optimizer


@final
class FedAvg(AbstractAlgorithm):
    """Federated averaging, with any client and server optimizer (arXiv 1602.05629, 2003.00295).

    Each client takes its local steps from the server's model; the server takes the weighted mean
    of what they changed for the negative of a gradient.

    **Arguments:**

    - `loss`: `loss(model, batch, key)`, the mean loss of one batch.
    - `client_optimizer`: takes the local steps.
    - `server_optimizer`: applies the mean update; SGD at rate 1 is plain averaging.
    - `aggregator`: weighs and averages the clients.

    ```python
    algorithm = FedAvg(loss, client_optimizer=Optimizer(optax.sgd, learning_rate=0.1))
    state = algorithm.init(model, key=key)
    state, report = eqx.filter_jit(algorithm.step)(state, cohort, key=key)
    ```
    """

    round: Round

    def __init__(
        self,
        loss: Loss,
        *,
        client_optimizer: Optimizer,
        server_optimizer: Optimizer | None = None,
        aggregator: AbstractAggregator | None = None,
    ):
        self.round = Round(
            LocalSGD(loss, client_optimizer),
            WeightedMean() if aggregator is None else aggregator,
            Optimizer(optax.sgd, learning_rate=1.0)
            if server_optimizer is None
            else server_optimizer,
        )

    def init(self, model: Server[PyTree], *, key: Server[Key[Array, ""]]) -> Server[State]:
        del key
        return self.round.init(model)

    def step(
        self, state: Server[State], cohort: Clients[ClientData], *, key: Server[Key[Array, ""]]
    ) -> tuple[Server[State], Server[Report]]:
        return self.round.step(state, cohort, key=key)

    def model(self, state: Server[State]) -> Server[PyTree]:
        return state.model
