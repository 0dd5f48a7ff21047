"""A plan on Flower: server stages in a ServerApp, client stages in ClientApps on their own data.

`build` needs nothing but an exported plan; `server_app` and `client_app`, which the app that it
writes calls, need the extra `fedeqx[flower]`.
"""

from typing import TYPE_CHECKING, Any

from ._build import DEFAULT_CLIENTS as DEFAULT_CLIENTS
from ._build import build as build
from ._build import read_settings_file as read_settings_file
from ._build import save_arguments as save_arguments
from ._files import ARGUMENTS as ARGUMENTS
from ._node import NodeClient as NodeClient
from ._node import NodeError as NodeError
from ._node import Wanted as Wanted
from ._settings import Settings as Settings
from ._settings import SettingsError as SettingsError

if TYPE_CHECKING:
    from ._client import client_app as client_app
    from ._server import NotEnoughNodesError as NotEnoughNodesError
    from ._server import server_app as server_app

_WITH_FLOWER = {
    "client_app": "_client",
    "NotEnoughNodesError": "_server",
    "server_app": "_server",
}


def __getattr__(name: str) -> Any:
    if name not in _WITH_FLOWER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    try:
        import flwr.app  # noqa: F401
    except ImportError as e:
        raise ImportError(
            "Running a plan on Flower needs Flower 1.42: pip install 'fedeqx[flower]'."
        ) from e
    return getattr(importlib.import_module(f".{_WITH_FLOWER[name]}", __name__), name)
