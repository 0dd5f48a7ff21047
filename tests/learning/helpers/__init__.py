"""Algorithms with NumPy oracles, a small problem with a gradient by hand, and a differentiated run.

`ALGORITHMS` is the registry: a new algorithm is one entry of it, and is held to every property.
"""

from ._compare import assert_oracles as assert_oracles
from ._compare import assert_oracles_gradients as assert_oracles_gradients
from ._compare import assert_same_outcome as assert_same_outcome
from ._compare import outcome as outcome
from ._compare import reports_of as reports_of
from ._oracle import NpAdam as NpAdam
from ._oracle import NpSGD as NpSGD
from ._oracle import np_fedavg as np_fedavg
from ._oracle import np_fedsgd as np_fedsgd
from ._oracle import np_loss_and_grad as np_loss_and_grad
from ._problem import CLIENTS as CLIENTS
from ._problem import FEATURES as FEATURES
from ._problem import ROUNDS as ROUNDS
from ._problem import STEPS as STEPS
from ._problem import NpRounds as NpRounds
from ._problem import cohort_of as cohort_of
from ._problem import make_rounds as make_rounds
from ._problem import model_of as model_of
from ._problem import neuron_loss as neuron_loss
from ._problem import one_round as one_round
from ._problem import params_of as params_of
from ._problem import start as start
from ._registry import ALGORITHMS as ALGORITHMS
from ._registry import Entry as Entry
from ._registry import each_algorithm as each_algorithm
from ._registry import expected_gradients as expected_gradients
from ._registry import hypergradients as hypergradients
from ._run import Outcome as Outcome
from ._run import run as run
from ._run import traces as traces
from ._run import value_and_gradients as value_and_gradients
