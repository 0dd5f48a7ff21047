"""plan: a federated program taken apart into rounds of server and client stages."""

from ._errors import PlanError as PlanError
from ._plan import Message as Message
from ._plan import Plan as Plan
from ._plan import Round as Round
from ._plan import plan as plan
