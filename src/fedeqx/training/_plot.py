"""The picture of a run: loss curves, and the distribution of clients before and after tuning."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

COLORS = ("#1b6ca8", "#d1495b", "#2e933c", "#7d4e9f", "#b8860b", "#444444")


def plot_run(
    path: str | Path,
    *,
    losses: Mapping[str, Sequence[float]],
    personalization: Mapping[str, tuple[Sequence[float], Sequence[float]]],
) -> None:
    """Draws a PNG: training loss by round, and the clients' losses before and after tuning.

    **Arguments:**

    - `path`: where to write it.
    - `losses`: per algorithm, the training loss of each round, nats per token.
    - `personalization`: per algorithm, each client's held-out loss before and after tuning.

    Raises an `ImportError` that names the extra to install where Matplotlib is missing.
    """
    figure_class = require_matplotlib()
    figure = figure_class(figsize=(11, 4.2), dpi=120, layout="constrained")
    curves, clients = figure.subplots(1, 2)
    for color, (name, values) in zip(COLORS, losses.items(), strict=False):
        curves.plot(np.arange(1, len(values) + 1), values, color=color, label=name)
    curves.set(xlabel="round", ylabel="training loss (nats per token)", title="Training")
    for color, (name, (pre, post)) in zip(COLORS, personalization.items(), strict=False):
        for values, style, when in ((pre, "--", "before"), (post, "-", "after")):
            fraction = np.arange(1, len(values) + 1) / len(values)
            label = f"{name}, {when}"
            clients.step(np.sort(values), fraction, style, color=color, where="post", label=label)
    clients.set(
        xlabel="held-out loss of a client (nats per token)",
        ylabel="fraction of clients",
        title="Before and after personalization",
        ylim=(0, 1),
    )
    for axes in (curves, clients):
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    figure.savefig(path)


def require_matplotlib() -> Any:
    """Matplotlib's `Figure`, or an error that names the extra."""
    try:
        from matplotlib.figure import Figure
    except ImportError as e:
        raise ImportError(
            "Plots need Matplotlib, which is an extra: pip install 'fedeqx[plot]'"
        ) from e
    return Figure
