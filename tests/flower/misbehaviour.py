"""The code of a ClientApp that spoils its answers, as its node's configuration says."""

CLIENT_APP = """
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedeqx.federated.backends.flower import client_app
from fedeqx.training import node_clients


def failing(wanted):
    raise RuntimeError("secret of the node")


good = client_app(Path(__file__).parent, clients=node_clients)
bad = client_app(Path(__file__).parent, clients=failing)
app = ClientApp()


@app.train()
@app.query()
def answer(message, context):
    behave = context.node_config.get("behave", "")
    exchange = message.content["fedeqx"]["exchange"]
    if behave == "raise":
        return bad(message, context)
    behave, _, at = behave.partition(" at ")
    reply = good(message, context)
    if not behave or exchange < 0 or (at and exchange != int(at)):
        return reply
    records = reply.content
    values = records["values"]
    name = next(key for key, array in values.items() if np.prod(array.shape) == 3)
    array = values[name]
    new = dict(dtype=array.dtype, shape=array.shape, stype=array.stype, data=array.data)
    if behave == "nan":
        new["data"] = np.array([1, np.nan, 1], np.float32).tobytes()
    elif behave == "shape":
        new["shape"] = (1, 3)
    elif behave == "dtype":
        new["dtype"] = "int32"
    elif behave == "short":
        new["data"] = array.data[:-1]
    elif behave == "pickle":
        new["stype"] = "pickle"
    elif behave == "huge":
        new["data"] = bytes(64 << 20)
    elif behave == "more":
        values["more"] = array
    elif behave == "records":
        records["metrics"] = MetricRecord({"loss": 1.0})
    elif behave == "clients":
        records["fedeqx"] = ConfigRecord({"clients": -3})
    elif behave.startswith("wait:"):
        Path(behave.removeprefix("wait:")).touch()
        time.sleep(300)
    if behave == "fewer":
        del values[name]
    else:
        values[name] = Array(**new)
    return Message(records, reply_to=message)
"""
