"""Federated algorithms as NumPy loops in float64, from their papers and nothing else."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from ._problem import FEATURES, NpRounds

Rate = float | Callable[[int], Any]


def np_loss_and_grad(params: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[Any, np.ndarray]:
    """Of one neuron, by the chain rule: d tanh(z) = 1 - tanh(z)^2."""
    out = np.tanh(x @ params[:FEATURES] + params[FEATURES])
    slope = 2.0 * (out - y) * (1.0 - out**2) / len(y)
    return np.mean((out - y) ** 2), np.append(x.T @ slope, np.sum(slope))


@dataclasses.dataclass
class NpSGD:
    """Heavy-ball SGD: `v <- momentum v + g; p <- p - rate v`."""

    rate: Rate
    momentum: float = 0.0

    def init(self, params: np.ndarray) -> Any:
        return np.zeros_like(params)

    def step(self, params: np.ndarray, grad: np.ndarray, state: Any, count: int) -> Any:
        velocity = self.momentum * state + grad
        return params - _at(self.rate, count) * velocity, velocity


@dataclasses.dataclass
class NpAdam:
    """Adam (arXiv 1412.6980), algorithm 1."""

    rate: Rate
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8

    def init(self, params: np.ndarray) -> Any:
        return 0, np.zeros_like(params), np.zeros_like(params)

    def step(self, params: np.ndarray, grad: np.ndarray, state: Any, count: int) -> Any:
        t, m, v = state
        t, m, v = t + 1, self.b1 * m + (1 - self.b1) * grad, self.b2 * v + (1 - self.b2) * grad**2
        m_hat, v_hat = m / (1 - self.b1**t), v / (1 - self.b2**t)
        step = _at(self.rate, count) * m_hat / (np.sqrt(v_hat) + self.eps)
        return params - step, (t, m, v)


def _at(rate: Rate, count: int) -> Any:
    return rate(count) if callable(rate) else rate


def np_fedavg(params, rounds: NpRounds, client, server, by: str = "examples"):
    """Federated averaging: each client steps from the server's model (arXiv 1602.05629, alg. 1).

    Returns the parameters after each round, and the reports.
    """

    def work(params, x, y, mask, before):
        local, state, losses = params, client.init(params), []
        for s in np.flatnonzero(mask):
            loss, grad = np_loss_and_grad(local, x[s], y[s])
            losses.append(loss)
            local, state = client.step(local, grad, state, before * len(mask) + int(s))
        return local - params, losses

    return _rounds(params, rounds, work, server, by)


def np_fedsgd(params, rounds: NpRounds, server, by: str = "examples"):
    """The gradient of the federated loss, one step a round."""

    def work(params, x, y, mask, before):
        each = [np_loss_and_grad(params, x[s], y[s]) for s in np.flatnonzero(mask)]
        gradient = sum((grad for _, grad in each), np.zeros_like(params))
        return -gradient / max(len(each), 1), [loss for loss, _ in each]

    return _rounds(params, rounds, work, server, by)


def _rounds(params, rounds: NpRounds, work, server, by: str):
    """`work` at each client, the weighted mean, a server step; a round without clients is none."""
    state, done, history, reports = server.init(params), 0, [], []
    for x, y, mask, examples, _ in zip(*rounds, strict=True):
        update, loss, steps, total, used = np.zeros_like(params), 0.0, 0.0, 0.0, 0
        for i, n in enumerate(examples):
            weight = float(n) if by == "examples" else float(n > 0)
            if weight == 0:
                continue
            delta, losses = work(params, x[i], y[i], mask[i], done)
            update = update + weight * delta
            loss += weight * (sum(losses) / max(len(losses), 1))
            steps += weight * len(losses)
            total, used = total + weight, used + 1
        if used:
            update, loss, steps = update / total, loss / total, steps / total
            params, state = server.step(params, -update, state, done)
            done += 1
        history.append(params)
        reports.append([loss, steps, used, total, np.sqrt(np.sum(update**2))])
    return np.stack(history), np.array(reports)
