"""`fedeqx group`: partition a data set into groups, once, on disk."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._amounts import amount
from ._errors import CommandError, explained
from ._partitions import SYNTAX, parse_by
from ._sources import SYNTAX as SOURCES
from ._sources import parse_source

if TYPE_CHECKING:
    from ..data import Progress

_STAGES = {"read": "reading", "assign": "assigning", "write": "writing"}


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser(
        "group",
        help="partition a data set into groups on disk",
        description="Partition the examples of files into groups and write them, sorted by group, "
        "to a folder.",
        epilog=f"{SOURCES}\n\n{SYNTAX}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "source",
        nargs="+",
        metavar="SOURCE",
        help="files, a pattern of them, or a folder: see below",
    )
    parser.add_argument(
        "--by", action="append", required=True, metavar="PARTITION", help="see below"
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="folder to write")
    parser.add_argument(
        "--engine",
        choices=("local", "beam"),
        default="local",
        help="this machine (default), or an Apache Beam pipeline on the runner of --beam-options",
    )
    parser.add_argument(
        "--beam-options",
        default="",
        metavar="OPTIONS",
        help='written --beam-options="--runner=FlinkRunner --parallelism=64"',
    )
    parser.add_argument("--overwrite", action="store_true", help="replace what is there")
    parser.add_argument(
        "--on-error",
        choices=("raise", "skip"),
        default="raise",
        help="stop at an example that cannot be read or grouped (default), or leave it out and "
        "list it in the manifest",
    )
    parser.add_argument(
        "--memory-limit", default="1GB", metavar="SIZE", help="what the sort holds; default: 1GB"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="default: one per core")
    parser.add_argument("--shard-bytes", default="64MiB", metavar="SIZE", help="default: 64MiB")
    parser.add_argument(
        "--row-group-bytes", default="256KiB", metavar="SIZE", help="default: 256KiB"
    )
    parser.add_argument("--compression", default="lz4", metavar="CODEC", help="default: lz4")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(arguments: argparse.Namespace) -> int:
    # Imported when run, so that `fedeqx --help` does not wait for Arrow.
    from .. import data

    out = Path(arguments.out)
    if "://" not in arguments.out and out.exists() and not arguments.overwrite:
        raise CommandError(
            f"{out} exists already. Choose another --out, or replace it with --overwrite."
        )
    with explained(ImportError, TypeError, ValueError, OSError):
        source = parse_source(arguments.source)
        if arguments.engine == "local":
            source = data.as_source(source)
        by = parse_by(arguments.by)
    options = {
        "by": by,
        "overwrite": arguments.overwrite,
        "on_error": arguments.on_error,
        "memory_limit": arguments.memory_limit,
        "shard_bytes": arguments.shard_bytes,
        "row_group_bytes": arguments.row_group_bytes,
        "compression": arguments.compression,
    }
    if arguments.engine == "beam":
        with explained(ImportError, TypeError, ValueError, OSError):
            manifest = data.group_with_beam(
                source,
                out=arguments.out,
                pipeline_options=shlex.split(arguments.beam_options),
                **options,
            )
        _summarize(manifest, arguments.out)
        return 0
    with Bars(quiet=arguments.quiet) as bars, explained(ValueError, OSError):
        dataset = data.group(source, out=out, progress=bars, threads=arguments.threads, **options)
    _summarize(dataset.manifest, str(dataset.path))
    return 0


class Bars:
    """A progress bar on the error stream for each stage of grouping."""

    def __init__(self, *, quiet: bool):
        self._quiet = quiet
        self._stage = ""
        self._bar = None

    def __enter__(self) -> "Bars":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, progress: "Progress") -> None:
        from tqdm import tqdm

        if self._quiet:
            return
        if progress.stage != self._stage or self._bar is None:
            self.__exit__()
            self._stage = progress.stage
            self._bar = tqdm(
                desc=_STAGES[progress.stage],
                unit=" examples",
                unit_scale=True,
                # A file that collects the error stream need not hold hundreds of bars.
                mininterval=0.1 if sys.stderr.isatty() else 10,
                dynamic_ncols=True,
            )
        # The total of a text file is an estimate.
        total = progress.total
        self._bar.total = None if total is None else max(total, progress.examples)
        speed = progress.bytes / max(progress.seconds, 1e-9)
        self._bar.set_postfix_str(f"{amount(speed)}/s", refresh=False)
        self._bar.update(progress.examples - self._bar.n)


def _summarize(manifest: dict[str, Any], out: str) -> None:
    print(
        f"{manifest['num_groups']:,} groups, {manifest['num_examples']:,} examples, "
        f"{amount(manifest['num_bytes'])}: {out}"
    )
    if empty := manifest["partition"].get("empty_groups"):
        print(f"{empty:,} groups are empty, and so not among them")
    if count := manifest["num_skipped"]:
        first = manifest["skipped"][0]
        print(
            f"{count:,} skipped; the first: {first['where']}: {' '.join(first['why'].split())}\n"
            f"The others are listed in {out}/manifest.json"
        )
