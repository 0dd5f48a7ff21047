"""Running algorithms: the loop, evaluation and personalization, run folders, plots."""

from ._evaluation import Metric as Metric
from ._evaluation import PersonalizationReport as PersonalizationReport
from ._evaluation import evaluate as evaluate
from ._evaluation import personalize as personalize
from ._loop import Callback as Callback
from ._loop import RoundResult as RoundResult
from ._loop import client_seed as client_seed
from ._loop import to_clients as to_clients
from ._loop import train as train
from ._node_clients import node_clients as node_clients
from ._plot import plot_run as plot_run
from ._plot import require_matplotlib as require_matplotlib
from ._run import Run as Run
from ._run import RunError as RunError
