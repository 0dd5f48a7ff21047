"""fedeqx: federated and group-structured machine learning in JAX.

In the order of the data's way: `data` groups examples by client and streams them; the names below
are the language of federated programs; `learning` has algorithms, `nn` models; `training` runs
them, and `cli` is the `fedeqx` command.
"""

import importlib
from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import data as data
    from . import learning as learning
    from . import nn as nn
    from . import training as training
    from .federated import CLIENTS as CLIENTS
    from .federated import SERVER as SERVER
    from .federated import Clients as Clients
    from .federated import HostClients as HostClients
    from .federated import LoadedPlan as LoadedPlan
    from .federated import Plan as Plan
    from .federated import PlanError as PlanError
    from .federated import Server as Server
    from .federated import broadcast as broadcast
    from .federated import client_map as client_map
    from .federated import cohort_size as cohort_size
    from .federated import load_plan as load_plan
    from .federated import plan as plan
    from .federated import program as program
    from .federated import reduce_max as reduce_max
    from .federated import reduce_mean as reduce_mean
    from .federated import reduce_min as reduce_min
    from .federated import reduce_sum as reduce_sum
    from .federated import stream as stream

__version__ = _version("fedeqx")

__all__ = [
    "CLIENTS",
    "SERVER",
    "Clients",
    "HostClients",
    "LoadedPlan",
    "Plan",
    "PlanError",
    "Server",
    "broadcast",
    "client_map",
    "cohort_size",
    "data",
    "learning",
    "load_plan",
    "nn",
    "plan",
    "program",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_sum",
    "stream",
    "training",
]

_FOLDERS = ("data", "learning", "nn", "training")


def __getattr__(name: str) -> Any:
    # Imported when first used: a data worker that needs `fedeqx.data` alone must not pay for JAX.
    if name in _FOLDERS:
        return importlib.import_module(f".{name}", __name__)
    if name in __all__:
        value = getattr(importlib.import_module(".federated", __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
