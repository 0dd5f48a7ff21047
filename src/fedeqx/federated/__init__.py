"""The language: placements, and the operations that move values between them."""

from ._client import client_map as client_map
from ._operations import broadcast as broadcast
from ._operations import cohort_size as cohort_size
from ._operations import reduce_max as reduce_max
from ._operations import reduce_mean as reduce_mean
from ._operations import reduce_min as reduce_min
from ._operations import reduce_sum as reduce_sum
from ._placement import CLIENTS as CLIENTS
from ._placement import SERVER as SERVER
from ._placement import Clients as Clients
from ._placement import Server as Server
from ._program import program as program
from .backends._export import LoadedPlan as LoadedPlan
from .backends._export import load_plan as load_plan
from .backends._host import HostClients as HostClients
from .backends._stream import default_at_once as default_at_once
from .backends._stream import require_at_once as require_at_once
from .backends._stream import stream as stream
from .plan import Plan as Plan
from .plan import PlanError as PlanError
from .plan import plan as plan
