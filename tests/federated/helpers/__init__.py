"""Federated programs with oracles, comparisons of trees, and a reader of jaxprs, for all tests.

`CASES` is the registry: a backend is right if it runs each case to its oracle's result.
"""

from ._case import Case as Case
from ._case import floats as floats
from ._case import is_inexact as is_inexact
from ._case import plain as plain
from ._case import to_float64 as to_float64
from ._case import to_jax as to_jax
from ._compare import as_numpy as as_numpy
from ._compare import assert_matches as assert_matches
from ._compare import assert_same as assert_same
from ._compare import label as label
from ._composed import COMPOSED as COMPOSED
from ._jaxpr import FED as FED
from ._jaxpr import equations as equations
from ._jaxpr import names as names
from ._jaxpr import rounds as rounds
from ._losses import LOSSES as LOSSES
from ._mixing import Checker as Checker
from ._mixing import ClientsMixError as ClientsMixError
from ._rounds import ROUNDS as ROUNDS
from ._statistics import STATISTICS as STATISTICS

CASES: tuple[Case, ...] = (*LOSSES, *ROUNDS, *STATISTICS, *COMPOSED)
