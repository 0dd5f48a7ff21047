"""FedAvg: local steps, averaged (arXiv 1602.05629)."""

from typing import final

import optax

from ._aggregator import AbstractAggregator, WeightedMean
from ._algorithm import AbstractRoundAlgorithm, Round
from ._client_work import LocalSGD, Loss
from ._optimizer import Optimizer


@final
class FedAvg(AbstractRoundAlgorithm):
    """Federated averaging, with any client and server optimizer (arXiv 1602.05629, 2003.00295).

    Each client takes its local steps from the server's model; the server takes the weighted mean
    of what they changed for the negative of a gradient.

    **Arguments:**

    - `loss`: `loss(model, batch, key)`, the mean loss of one batch.
    - `client_optimizer`: takes the local steps.
    - `server_optimizer`: applies the mean update; SGD at rate 1 is plain averaging.
    - `aggregator`: weighs and averages the clients.
    - `at_once`: how many clients run at a time, as in `stream`; by default all of them.

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
        at_once: int | None = None,
    ):
        self.round = Round(
            LocalSGD(loss, client_optimizer),
            WeightedMean() if aggregator is None else aggregator,
            Optimizer(optax.sgd, learning_rate=1.0)
            if server_optimizer is None
            else server_optimizer,
            at_once,
        )
