"""Sources as they are written on the command line."""

import csv
from collections.abc import Sequence
from typing import Any

from ._errors import CommandError

SYNTAX = """\
sources:
  PATH, FOLDER or "PATTERN"      Parquet, JSON-lines, CSV or ArrayRecord files, or text files
  URL                            the same at an fsspec URL, with --engine beam
  hf:NAME,split=SPLIT            a Hugging Face data set (name=CONFIGURATION, streaming=true, and
                                 what else datasets.load_dataset takes)
  tfds:NAME,split=SPLIT          a TFDS data set (data_dir=DIR)"""


def parse_source(texts: Sequence[str]) -> Any:
    """The source that the arguments ask for, as `fedeqx.data.group` takes it.

    Raises `CommandError` that names what cannot be understood.
    """
    from .. import data

    if len(texts) > 1:
        return list(texts)
    text = texts[0]
    kind, _, rest = text.partition(":")
    if kind not in ("hf", "tfds"):
        return text
    name, *others = next(csv.reader([rest])) if rest else [""]
    options: dict[str, Any] = {}
    for other in others:
        option, equals, value = other.strip().partition("=")
        if not equals:
            raise CommandError(f"{text}: {other!r} is not of the form NAME=VALUE.")
        options[option] = {"true": True, "false": False}.get(value, value)
    if not name or "split" not in options:
        raise CommandError(f"{text}: name the split too: {kind}:{name or 'NAME'},split=train.")
    if kind == "hf":
        return data.HuggingFaceSource.load(name, **options)
    return data.TfdsSource(name, **options)
