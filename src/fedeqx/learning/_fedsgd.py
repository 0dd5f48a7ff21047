"""FedSGD: one gradient step of the federated loss (arXiv 1602.05629)."""

from typing import final

from jaxtyping import Array, Key, PyTree

from ..federated import Clients, Server
from ._aggregator import AbstractAggregator, WeightedMean
from ._algorithm import AbstractAlgorithm, Report, Round, State
from ._client_work import ClientData, LocalGradient, Loss
from ._optimizer import Optimizer


@final
class FedSGD(AbstractAlgorithm):
    """Gradient descent on the weighted mean of the clients' losses (arXiv 1602.05629).

    Each client sends its gradient at the server's model, the mean over its batches.

    **Arguments:**

    - `loss`: `loss(model, batch, key)`, the mean loss of one batch.
    - `server_optimizer`: steps along the mean gradient.
    - `aggregator`: weighs and averages the clients.
    """

    round: Round

    def __init__(
        self,
        loss: Loss,
        *,
        server_optimizer: Optimizer,
        aggregator: AbstractAggregator | None = None,
    ):
        self.round = Round(
            LocalGradient(loss),
            WeightedMean() if aggregator is None else aggregator,
            server_optimizer,
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
