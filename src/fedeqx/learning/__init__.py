"""Algorithms: client work, an aggregator and a server optimizer, composed to rounds."""

from ._aggregator import AbstractAggregator as AbstractAggregator
from ._aggregator import AggregatorReport as AggregatorReport
from ._aggregator import WeightedMean as WeightedMean
from ._algorithm import AbstractAlgorithm as AbstractAlgorithm
from ._algorithm import Report as Report
from ._algorithm import Round as Round
from ._algorithm import ServerReport as ServerReport
from ._algorithm import State as State
from ._client_work import AbstractClientWork as AbstractClientWork
from ._client_work import ClientData as ClientData
from ._client_work import ClientReport as ClientReport
from ._client_work import LocalGradient as LocalGradient
from ._client_work import LocalSGD as LocalSGD
from ._client_work import Loss as Loss
from ._fedavg import FedAvg as FedAvg
from ._fedsgd import FedSGD as FedSGD
from ._optimizer import Optimizer as Optimizer
