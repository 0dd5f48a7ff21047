"""How large the groups of a data set are, and how their labels differ."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from ._dataset import GroupedDataset

MEASURES = ("examples", "bytes", "words")
PERCENTILES = (0, 1, 10, 25, 50, 75, 90, 99, 100)


def stats(
    dataset: GroupedDataset, *, percentiles: tuple[float | int, ...] = PERCENTILES
) -> dict[str, dict[str, int | float]]:
    """Totals and percentiles of the groups' sizes.

    **Arguments:**

    - `dataset`: the data set, or a part of it.
    - `percentiles`: which ones, from 0 to 100.

    **Returns:**

    For each of `"examples"`, `"bytes"` and `"words"`: `"total"`, `"mean"`, and `"p10"` and so on
    for the percentiles over groups. Raises `ValueError` for a data set without groups.
    """
    if not dataset.num_groups:
        raise ValueError(f"{dataset!r} has no groups, and so no statistics.")
    told = {}
    for measure in MEASURES:
        sizes = dataset.sizes(measure)
        told[measure] = {"total": int(sizes.sum()), "mean": float(sizes.mean())}
        values = np.percentile(sizes, percentiles)
        told[measure] |= {
            f"p{percentile:g}": float(value)
            for percentile, value in zip(percentiles, values, strict=True)
        }
    return told


def group_counts(dataset: GroupedDataset) -> pa.Table:
    """The size of every group: the counts that Dataset Grouper writes.

    **Arguments:**

    - `dataset`: the data set, or a part of it.

    **Returns:**

    A table of one row per group with the columns `group_id`, `examples`, `bytes` and `words`.
    """
    ids = dataset.id_column()
    return pa.table({"group_id": ids, **{name: dataset.sizes(name) for name in MEASURES}})


def write_counts(dataset: GroupedDataset, file: str | Path) -> None:
    """Write `group_counts` to a `.csv` or a `.parquet` file."""
    path = Path(file)
    table = group_counts(dataset)
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".csv":
        pa_csv.write_csv(table, path)
    else:
        raise ValueError(f"write_counts({str(file)!r}): the name must end in .csv or .parquet.")


class LabelSkew(NamedTuple):
    """How far the groups' label distributions are from the whole data set's.

    - `labels`: the labels, sorted.
    - `overall`: float64 [labels]; the whole data set's distribution.
    - `distances`: float64 [groups]; each group's total variation distance from it, from 0 (the
        same, or no examples) to 1 (nothing in common).
    - `num_labels`: int64 [groups]; how many labels each group has.
    """

    labels: list[Any]
    overall: np.ndarray
    distances: np.ndarray
    num_labels: np.ndarray


def label_skew(dataset: GroupedDataset, label: str) -> LabelSkew:
    """Compare the groups' label distributions with the whole data set's.

    **Arguments:**

    - `dataset`: the data set, or a part of it; its label column is read once.
    - `label`: the column that holds the label.

    **Returns:**

    A `LabelSkew`. Raises `ValueError` where there is no such column.
    """
    if label not in dataset.schema.names:
        raise ValueError(
            f"label_skew(label={label!r}): the columns are {dataset.schema.names}; give one of "
            "them."
        )
    counts: list[dict[Any, int]] = []
    for group in dataset:
        own: dict[Any, int] = {}
        for batch in group.batches(columns=(label,)):
            for item in batch.column(0).value_counts().to_pylist():
                own[item["values"]] = own.get(item["values"], 0) + item["counts"]
        counts.append(own)
    labels = sorted({value for own in counts for value in own}, key=lambda v: (str(type(v)), v))
    overall = np.asarray([sum(own.get(value, 0) for own in counts) for value in labels], float)
    overall /= max(overall.sum(), 1.0)
    distances = []
    for own in counts:
        shares = np.asarray([own.get(value, 0) for value in labels]) / max(1, sum(own.values()))
        distances.append(abs(shares - overall).sum() / 2 if own else 0.0)
    return LabelSkew(
        labels, overall, np.asarray(distances), np.asarray([len(own) for own in counts])
    )


def letter_values(values: np.ndarray) -> list[tuple[float, float]]:
    """The boxes of a letter-value plot (Hofmann, Wickham and Kafadar, 2017).

    **Arguments:**

    - `values`: the data, of any size.

    **Returns:**

    The pairs of lower and upper letter values: fourths, eighths, sixteenths, and so on as long as
    at least five values lie outside a box.
    """
    boxes = []
    tail = 0.25
    while not boxes or tail * len(values) >= 5:
        low, high = np.quantile(values, (tail, 1 - tail))
        boxes.append((float(low), float(high)))
        tail /= 2
    return boxes


def plot_sizes(datasets: dict[str, GroupedDataset], file: str | Path, *, of: str = "words") -> None:
    """Draw the distributions of group sizes: on log axes, and as letter-value plots.

    As figures 2 and 8 of [arXiv 2307.09619](https://arxiv.org/abs/2307.09619).

    **Arguments:**

    - `datasets`: data sets by the name to show.
    - `file`: the picture to write; its ending gives the format.
    - `of`: `"examples"`, `"bytes"` or `"words"`.

    Raises `ImportError` where matplotlib is missing: install `fedeqx[plot]`.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plot_sizes draws with matplotlib: install fedeqx[plot].") from error
    figure = Figure(figsize=(10, 4), layout="constrained")
    curves, boxes = figure.subplots(1, 2)
    for number, (name, dataset) in enumerate(datasets.items()):
        sizes = np.maximum(dataset.sizes(of), 1)
        edges = np.geomspace(sizes.min(), sizes.max() + 1, 41)
        heights, _ = np.histogram(sizes, edges)
        curves.stairs(heights, edges, label=name, color=f"C{number}")
        values = letter_values(sizes)
        for depth, (low, high) in enumerate(values):
            width = 0.8 * 2**-depth
            boxes.fill_between(
                (number - width / 2, number + width / 2), low, high, color=f"C{number}", alpha=0.35
            )
        boxes.hlines(np.median(sizes), number - 0.4, number + 0.4, color="black")
    curves.set(xscale="log", yscale="log", xlabel=f"{of} in a group", ylabel="groups")
    curves.legend()
    boxes.set(yscale="log", ylabel=f"{of} in a group")
    boxes.set_xticks(range(len(datasets)), list(datasets))
    figure.savefig(file)
