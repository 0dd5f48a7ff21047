"""`fedeqx demo`: from raw text to a personalized model, on what every machine has.

Groups the running Python's standard library by package, trains a byte-level transformer with
FedAvg and with FedSGD at equal tokens, and fine-tunes both on packages that training never saw.
"""

import argparse
import dataclasses
import sys
import time
from pathlib import Path

from ._errors import CommandError
from ._tables import table


@dataclasses.dataclass(frozen=True)
class Settings:
    """What decides the numbers of a demo run."""

    seed: int
    rounds: int
    cohort: int = 8
    steps: int = 4
    batch_size: int = 8
    sequence_length: int = 64
    held_out: float = 0.15
    personal_steps: int = 4
    depth: int = 5

    @property
    def tokens_per_round(self) -> int:
        return self.cohort * self.steps * self.batch_size * self.sequence_length


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser(
        "demo",
        help="group real text, train on it federatedly, personalize",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="run folder (default: runs/demo-DATE-TIME); an interrupted run in it goes on",
    )
    parser.add_argument("--rounds", type=_positive, metavar="N", help="rounds per algorithm")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    parser.add_argument("--quick", action="store_true", help="a short run, about 30 seconds")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} rounds; give at least 1")
    return value


def settings_of(arguments: argparse.Namespace) -> Settings:
    if arguments.quick:
        rounds = arguments.rounds or 6
        return Settings(arguments.seed, rounds, cohort=4, held_out=0.05, personal_steps=2)
    return Settings(arguments.seed, arguments.rounds or 28)


def run(arguments: argparse.Namespace) -> int:
    # Imported when run, so that `fedeqx --help` does not wait for JAX.
    from ..training import RunError, require_matplotlib
    from ._demo_run import Demo

    out = arguments.out or Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")
    try:
        require_matplotlib()  # before the work, not after it
        demo = Demo(out, settings_of(arguments))
    except (ImportError, RunError) as e:
        raise CommandError(e) from e
    try:
        demo.run()
    except KeyboardInterrupt:
        again = " ".join(["fedeqx demo", f"--out {out}", *_as_given(arguments)])
        print(f"\nInterrupted; what is finished is in {out}. To go on: {again}", file=sys.stderr)
        return 130
    return 0


def _as_given(arguments: argparse.Namespace) -> list[str]:
    given = [f"--seed {arguments.seed}"]
    if arguments.rounds:
        given.append(f"--rounds {arguments.rounds}")
    return [*given, "--quick"] if arguments.quick else given


def show_groups(dataset, skipped: int) -> None:
    """Prints what the data set holds: counts, and how long its tail is."""
    import numpy as np

    sizes, examples = dataset.sizes("bytes"), dataset.sizes("examples")
    marks = (10, 50, 90, 99, 100)
    rows = [
        [what, f"{total:,}", *(f"{np.percentile(values, mark):,.0f}" for mark in marks)]
        for what, total, values in (
            ("examples (files)", int(examples.sum()), examples),
            ("bytes", int(sizes.sum()), sizes),
        )
    ]
    print(f"\n{dataset.num_groups:,} groups (standard-library packages and modules)")
    print(table(["per group", "total", *(f"p{mark}" for mark in marks)], rows))
    if skipped:
        print(
            f"{skipped} files whose encoding cannot be read were left out; see data/manifest.json"
        )
