"""fedeqx: federated and group-structured machine learning in JAX.

In the order of the data's way: `data` groups examples by client and streams them, the names below
are the language of federated programs, `nn` has models, `learning` has algorithms, `training` runs
them, and `cli` is the `fedeqx` command.
"""

from importlib.metadata import version as _version

from .federated import CLIENTS as CLIENTS
from .federated import SERVER as SERVER
from .federated import Clients as Clients
from .federated import Server as Server
from .federated import broadcast as broadcast
from .federated import client_map as client_map
from .federated import cohort_size as cohort_size
from .federated import program as program
from .federated import reduce_max as reduce_max
from .federated import reduce_mean as reduce_mean
from .federated import reduce_min as reduce_min
from .federated import reduce_sum as reduce_sum

__version__ = _version("fedeqx")
