"""FedSGD: one gradient step of the federated loss (arXiv 1602.05629)."""

from typing import final

from ._aggregator import AbstractAggregator, WeightedMean
from ._algorithm import AbstractRoundAlgorithm, Round
from ._client_work import LocalGradient, Loss
from ._optimizer import Optimizer


@final
class FedSGD(AbstractRoundAlgorithm):
    """Gradient descent on the weighted mean of the clients' losses (arXiv 1602.05629).

    Each client sends its gradient at the server's model, the mean over its batches.

    **Arguments:**

    - `loss`: `loss(model, batch, key)`, the mean loss of one batch.
    - `server_optimizer`: steps along the mean gradient.
    - `aggregator`: weighs and averages the clients.
    - `at_once`: how many clients run at a time, as in `stream`; by default all of them.
    """

    round: Round

    def __init__(
        self,
        loss: Loss,
        *,
        server_optimizer: Optimizer,
        aggregator: AbstractAggregator | None = None,
        at_once: int | None = None,
    ):
        self.round = Round(
            LocalGradient(loss),
            WeightedMean() if aggregator is None else aggregator,
            server_optimizer,
            at_once,
        )
