"""`fedeqx stats`: how large the groups of a data set are, and how their labels differ."""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ._errors import CommandError, explained
from ._tables import table

if TYPE_CHECKING:
    import numpy as np

    from ..data import GroupedDataset

_MOST_LABELS = 10


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser(
        "stats",
        help="sizes of groups and label skew of a grouped data set",
        description="Print the totals and percentiles of examples, bytes and words per group.",
    )
    parser.add_argument(
        "folders", type=Path, nargs="+", metavar="DIR", help="what `fedeqx group` wrote"
    )
    parser.add_argument(
        "--csv", type=_ending_in(".csv"), metavar="FILE", help="write the size of every group"
    )
    parser.add_argument("--parquet", type=_ending_in(".parquet"), metavar="FILE", help="the same")
    parser.add_argument(
        "--label", metavar="COLUMN", help="tell how far the groups' label distributions differ"
    )
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="draw the group sizes of all DIR, on log axes and as letter-value plots",
    )
    parser.add_argument(
        "--of",
        choices=("examples", "bytes", "words"),
        default="words",
        help="what --plot draws; default: words",
    )


def _ending_in(suffix: str):
    def file(text: str) -> Path:
        if Path(text).suffix != suffix:
            raise argparse.ArgumentTypeError(f"{text}: the name must end in {suffix}")
        return Path(text)

    return file


def run(arguments: argparse.Namespace) -> int:
    from .. import data

    counts = [file for file in (arguments.csv, arguments.parquet) if file]
    if counts and len(arguments.folders) > 1:
        raise CommandError("--csv and --parquet hold the groups of one DIR; give one.")
    with explained(ValueError, OSError, ImportError):
        datasets = {str(folder): data.open(folder) for folder in arguments.folders}
        for number, (name, dataset) in enumerate(datasets.items()):
            print(f"{chr(10) * (number > 0)}{name}: {dataset.num_groups:,} groups")
            _print_sizes(dataset)
            if arguments.label:
                _print_labels(dataset, arguments.label)
        for file in counts:
            data.write_counts(next(iter(datasets.values())), file)
        if arguments.plot:
            data.plot_sizes(datasets, arguments.plot, of=arguments.of)
    return 0


def _print_sizes(dataset: "GroupedDataset") -> None:
    from .. import data

    told = data.stats(dataset)
    header = ["per group", *next(iter(told.values()))]
    rows = [
        [measure, *(_number(value) for value in values.values())]
        for measure, values in told.items()
    ]
    print(table(header, rows))


def _print_labels(dataset: "GroupedDataset", label: str) -> None:
    import numpy as np

    from .. import data

    skew = data.label_skew(dataset, label)
    marks = data.PERCENTILES

    def row(name: str, values: "np.ndarray") -> list[str]:
        numbers: Iterable[float] = np.percentile(values, marks)
        return [name, _number(values.mean()), *map(_number, numbers)]

    print(f"\n{label}: {len(skew.labels):,} labels")
    print(
        table(
            ["per group", "mean", *(f"p{mark}" for mark in marks)],
            [
                row("labels", skew.num_labels),
                row("distance from all groups", skew.distances),
            ],
        )
    )
    order = np.argsort(-skew.overall, kind="stable")[:_MOST_LABELS]
    shares = [[str(skew.labels[place]), f"{skew.overall[place]:.1%}"] for place in order]
    print(f"\n{table([f'most frequent {label}', 'share'], shares)}")


def _number(value: float | int) -> str:
    if float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.1f}" if value >= 10 else f"{value:.3f}"
