"""Grouped data: fedeqx beside dataset-grouper 0.3.0, each in its own environment.

Both get the same text, made here from a seed: 100 MB in 400,000 examples of 20,000 long-tailed
groups, and one group of 300 MB. Whole processes are measured, start-up included, seen from outside.
`nox -s bench -- data`; all of it takes some twenty minutes, of which the peer's loops are most.
With `--part cohort` and the like a part of it.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from _data_process import Ran, run

OURS, PEER = "_data_ours.py", "_data_peer.py"
# Examples, groups, and mean bytes of an example's text.
TEXTS = {"many": (400_000, 20_000, 250), "one": (300_000, 1, 1000)}
NAMES = {"many": "20,000 groups", "one": "one group"}
GROUPS = (10_000, 100_000, 1_000_000, 10_000_000)
MB = 2**20


class Limit(NamedTuple):
    """A figure, and the bound that it is to keep."""

    what: str
    found: float
    bound: float
    at_least: bool = False

    @property
    def kept(self) -> bool:
        return self.found >= self.bound if self.at_least else self.found <= self.bound


class Bench:
    """What the parts share: options, and the data, which is made when first asked for."""

    def __init__(self, work: Path, peer: str, memory_limit: str, repeats: int):
        self.work = work
        self.memory_limit = memory_limit
        self.repeats = repeats
        self._peer = peer

    def ours(self, *arguments: object) -> Ran:
        return run(sys.executable, OURS, *arguments)

    def theirs(self, *arguments: object) -> Ran:
        return run(self._peer, PEER, *arguments)

    def turns(self, *ours: object, theirs: tuple[object, ...]) -> tuple[list[Ran], Ran]:
        """Ours several times, before and after the peer's single, long run."""
        before = [self.ours(*ours) for _ in range(self.repeats // 2)]
        theirs_ran = self.theirs(*theirs)
        return before + [self.ours(*ours) for _ in range(self.repeats - len(before))], theirs_ran

    def source(self, name: str) -> Path:
        return self._made(f"{name}.parquet", lambda p: self.ours("source", p, *TEXTS[name]))

    def groups(self, name: str) -> Path:
        source = self.source(name)
        return self._made(
            f"{name}-groups", lambda p: self.ours("group", source, p, self.memory_limit)
        )

    def prepared(self, name: str) -> Path:
        source = self.source(name)
        folder = self._made(f"{name}-tfds", lambda p: self.theirs("prepare", source, p))
        return next(folder.rglob("dataset_info.json")).parent

    def tfrecords(self, name: str) -> tuple[Path, Path]:
        prepared = self.prepared(name)
        return prepared, self._made(
            f"{name}-tfrecords", lambda p: self.theirs("group", prepared, p)
        )

    def _made(self, name: str, make: Callable[[Path], Ran]) -> Path:
        path = self.work / name
        if not path.exists():
            make(path)
        return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=PARTS, nargs="+", default=list(PARTS))
    parser.add_argument("--groups", type=int, nargs="+", default=GROUPS, help="for the memory part")
    parser.add_argument("--memory-limit", default="1GB", help="of fx.data.group; default: 1GB")
    parser.add_argument("--repeats", type=int, default=7, help="of ours; the peer runs once")
    parser.add_argument("--peer", default="python", help="the Python that has dataset-grouper")
    parser.add_argument("--work", type=Path, help="keep the data in this folder, and use it again")
    options = parser.parse_args()

    from _report import show_machine

    show_machine("fedeqx", "pyarrow", "numpy", "grain")
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        bench = Bench(work.absolute(), options.peer, options.memory_limit, options.repeats)
        limits = []
        for part in options.part:
            if part == "memory":
                limits += memory(bench, options.groups)
            else:
                limits += PARTS[part](bench)
    told(
        "Every limit",
        ["", "found", "limit", ""],
        [
            [
                limit.what,
                f"{limit.found:.3g}",
                f"{'at least' if limit.at_least else 'at most'} {limit.bound:.3g}",
                "kept" if limit.kept else "MISSED",
            ]
            for limit in limits
        ],
    )
    return 0 if all(limit.kept for limit in limits) else 1


def group(bench: Bench) -> list[Limit]:
    rows, limits = [], []
    for name in TEXTS:
        source, prepared = bench.source(name), bench.prepared(name)
        out = bench.work / f"{name}-tfrecords"
        if out.exists():
            raise FileExistsError(f"{out} is left from another run. Give another --work.")
        ours, theirs = bench.turns(
            *("group", source, bench.work / f"{name}-groups", bench.memory_limit),
            theirs=("group", prepared, out),
        )
        seconds, peak = seconds_of(ours), statistics.median(ran.peak for ran in ours)
        cpu = f"{cpu_of(ours):.2f}", f"{theirs.cpu:.1f}"
        rows.append([NAMES[name], *in_seconds(seconds, theirs), *cpu, *in_mb(peak, theirs.peak)])
        limits += [
            Limit(f"grouping, {NAMES[name]}: times faster", theirs.seconds / seconds, 30, True),
            Limit(f"grouping, {NAMES[name]}: share of its peak RSS", peak / theirs.peak, 1 / 3),
        ]
    told(
        f"Grouping, memory limit {bench.memory_limit} (s, core s, MB of peak RSS; medians)",
        ["", "s", "peer", "faster", "core s", "peer", "MB", "peer", "share"],
        rows,
    )
    return limits


def iterate(bench: Bench) -> list[Limit]:
    groups, (prepared, records) = bench.groups("many"), bench.tfrecords("many")
    examples, documented = bench.turns(
        *("examples", groups, "direct"), theirs=("documented", prepared, records)
    )
    arrays, batched = bench.turns("batched", groups, theirs=("batched", prepared, records))
    stream = [bench.ours("examples", groups, "stream") for _ in range(bench.repeats)]
    every = {
        "every example as a dictionary": examples,
        "the same through the Grain stream": stream,
        "arrays by group": arrays,
    }
    for ran in [documented, batched, *examples, *stream, *arrays]:
        same = {key: ran.told[key] for key in ("examples", "text_bytes")}
        assert same == {key: documented.told[key] for key in same}, (same, documented.told)
    rows = [
        [
            what,
            f"{seconds_of(ran):.2f}",
            f"{cpu_of(ran):.2f}",
            f"{documented.seconds / seconds_of(ran):.0f}x",
            f"{batched.seconds / seconds_of(ran):.0f}x",
        ]
        for what, ran in every.items()
    ]
    rows += [
        ["peer, documented", f"{documented.seconds:.1f}", f"{documented.cpu:.1f}", "1x", ""],
        ["peer, arrays by group", f"{batched.seconds:.1f}", f"{batched.cpu:.1f}", "", "1x"],
    ]
    told(
        "All text of 20,000 groups as NumPy (s, core s; times faster than the peer's two forms)",
        ["", "s", "core s", "documented", "fastest"],
        rows,
    )
    return [
        *(
            Limit(f"{what}: times the documented loop", documented.seconds / s, 100, True)
            for what, s in ((what, seconds_of(ran)) for what, ran in every.items())
        ),
        Limit(
            "every example as a dictionary: times the fastest form",
            batched.seconds / seconds_of(examples),
            20,
            True,
        ),
    ]


def arrow(bench: Bench) -> list[Limit]:
    rows, limits = [], []
    for name in TEXTS:
        seconds = bench.ours("arrow", bench.groups(name), 9).told
        ratios = [raw / ours for raw, ours in zip(seconds["raw"], seconds["ours"], strict=True)]
        median = {key: 1e3 * statistics.median(values) for key, values in seconds.items()}
        rows.append(
            [
                NAMES[name],
                *(f"{median[key]:.0f}" for key in ("raw", "mapped", "ours")),
                f"{statistics.median(ratios):.2f}x",
                *(f"{median[key]:.0f}" for key in ("by_group", "groups")),
            ]
        )
        limits.append(
            Limit(
                f"Arrow batches, {NAMES[name]}: times pyarrow's speed",
                statistics.median(ratios),
                0.7,
                True,
            )
        )
    told(
        "Arrow batches of all examples, beside pyarrow over the same files (ms, medians in turn)",
        [
            "",
            "pyarrow's iter_batches",
            "its mapped row groups",
            "ours",
            "of iter_batches",
            "ours group by group",
            "of it, the groups alone",
        ],
        rows,
    )
    return limits


def memory(bench: Bench, groups: list[int]) -> list[Limit]:
    folders = {}
    for number in groups:
        folders[f"{number:,} groups"] = bench.work / f"groups-{number}"
        if not folders[f"{number:,} groups"].exists():
            bench.ours("make", bench.work / f"groups-{number}", number)
    folders["one group of 300 MB"] = bench.groups("one")
    rows, limits, levels = [], [], []
    for what, folder in folders.items():
        ran = bench.ours("stream", folder)
        rows.append([what, *in_mb_of(ran.told), f"{ran.seconds:.1f}", "", "", ""])
        limits.append(Limit(f"growth while streaming, {what} (MB)", ran.told["growth"] / MB, 2))
        if not what.startswith("one"):
            levels.append(ran.told["highest"])
            read = bench.ours("random", folder, 1000)
            rows[-1][-3:] = *in_mb_of(read.told), f"{1e3 * read.told['seconds']:.2f}"
            limits.append(
                Limit(f"growth over 1,000 random groups, {what} (MB)", read.told["growth"] / MB, 2)
            )
    told(
        "Anonymous RSS after the first 1%, and how far it grows past it (MB); a random group (ms)",
        ["", "streaming", "growth", "s", "random", "growth", "ms"],
        rows,
    )
    flat = Limit("highest RSS, over the numbers of groups: ratio", max(levels) / min(levels), 1.1)
    return [*limits, flat]


def one_group(bench: Bench) -> list[Limit]:
    prepared, records = bench.tfrecords("one")
    rows = [
        [what, f"{ran.told['rise'] / MB:.1f}", f"{ran.seconds:.1f}"]
        for what, ran in {
            "ours": bench.ours("stream", bench.groups("one")),
            "peer, documented": bench.theirs("documented", prepared, records),
            "peer, arrays by group": bench.theirs("batched", prepared, records),
        }.items()
    ]
    told("Rise of anonymous RSS from before the one group to its end (MB)", ["", "MB", "s"], rows)
    return []


def cohort(bench: Bench) -> list[Limit]:
    ran = bench.ours("cohort", bench.work / "clients", 20_000, 100)
    median, cpu = (1e3 * statistics.median(ran.told[key]) for key in ("seconds", "cpu"))
    extremes = (1e3 * of(ran.told["seconds"]) for of in (min, max))
    told(
        "Cohorts of 100 clients, 10 examples each, of 20,000 (ms per client, 100 rounds)",
        ["", "median", "least", "most", "core"],
        [["cohorts[r]", *(f"{ms:.2f}" for ms in (median, *extremes, cpu))]],
    )
    return [Limit("a client of 10 examples (ms)", median, 0.5)]


def seconds_of(runs: list[Ran]) -> float:
    return statistics.median(ran.seconds for ran in runs)


def cpu_of(runs: list[Ran]) -> float:
    return statistics.median(ran.cpu for ran in runs)


def in_seconds(ours: float, theirs: Ran) -> list[str]:
    return [f"{ours:.2f}", f"{theirs.seconds:.1f}", f"{theirs.seconds / ours:.1f}x"]


def in_mb(ours: float, theirs: float) -> list[str]:
    return [f"{ours / MB:.0f}", f"{theirs / MB:.0f}", f"{ours / theirs:.2f}"]


def in_mb_of(told: dict) -> list[str]:
    return [f"{told['level'] / MB:.1f}", f"{told['growth'] / MB:.2f}"]


def told(title: str, header: list[str], rows: list[list[str]]) -> None:
    """Print a table in Markdown."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    print(f"\n{title}\n")
    print("\n".join(f"| {' | '.join(line)} |" for line in lines), flush=True)


PARTS = {
    "group": group,
    "iterate": iterate,
    "arrow": arrow,
    "memory": memory,
    "one-group": one_group,
    "cohort": cohort,
}


if __name__ == "__main__":
    raise SystemExit(main())
