"""Tokenizes a data set once, to disk."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from ._amounts import parse_bytes
from ._appearing import appearing
from ._dataset import GroupedDataset
from ._dataset import open as open_dataset
from ._ids import to_key
from ._layout import GROUP_COLUMN, describe_schema, write_manifest
from ._measure import measure
from ._progress import Progress, Reporter
from ._sorting import FRONT
from ._sources import BATCH_BYTES, BATCH_ROWS
from ._tokens import AbstractTokenizer, TokenSource, token_source
from ._writer import GroupWriter, WriterOptions


def tokenize(
    dataset: GroupedDataset,
    tokenizer: AbstractTokenizer,
    *,
    out: str | Path,
    text: str = "text",
    column: str = "tokens",
    keep: Sequence[str] = (),
    overwrite: bool = False,
    progress: Callable[[Progress], None] | None = None,
    shard_bytes: str | int = "64MiB",
    row_group_bytes: str | int = "256KiB",
    compression: str = "lz4",
) -> GroupedDataset:
    """Write the tokens of a data set's text as a data set of the same groups.

    Its cohorts, `cohorts(..., tokens="tokens")`, are those of `cohorts(..., tokenizer=...)`, and
    are read without tokenizing again. The tokenizer is kept with the tokens, for `load_tokenizer`.

    **Arguments:**

    - `dataset`: the data set, or a part of it; groups without examples are left out.
    - `tokenizer`: what makes tokens of text.
    - `out`: the folder to write; it appears complete or not at all.
    - `text`: the column of text.
    - `column`: the column of tokens to write: one list per example, of 16-bit numbers where they
        suffice.
    - `keep`: other columns to write with it.
    - `overwrite`, `progress`, `shard_bytes`, `row_group_bytes`, `compression`: see `group`.

    **Returns:**

    The data set of tokens, opened. Raises `ValueError` where there is no such column.
    """
    source = token_source(
        "tokenize",
        schema=dataset.schema,
        manifest={},
        text=text,
        tokenizer=tokenizer,
        tokens=None,
    )
    absent = [name for name in keep if name not in dataset.schema.names]
    if absent or column in (*keep, GROUP_COLUMN):
        raise ValueError(
            f"tokenize(column={column!r}, keep={list(keep)}): the columns to keep are among "
            f"{dataset.schema.names}, and neither one of them nor {GROUP_COLUMN!r} is the name of "
            "that of the tokens."
        )
    kind = pa.uint16() if tokenizer.vocab_size <= 1 << 16 else pa.int32()
    schema = pa.schema([(column, pa.list_(kind)), *(dataset.schema.field(name) for name in keep)])
    options = WriterOptions(
        parse_bytes(shard_bytes, "shard_bytes"),
        parse_bytes(row_group_bytes, "row_group_bytes"),
        compression,
    )
    with appearing(Path(out), overwrite=overwrite) as folder:
        writer = GroupWriter(folder, schema, dataset.id_kind, options)
        try:
            # Of a part it is not known how many examples it has before they are read.
            total = None if dataset.is_part else dataset.num_examples
            for batch in Reporter(progress)(_batches(dataset, (text, *keep)), "write", total):
                keys, texts, *kept = batch.columns
                examples = pa.record_batch([_lists(texts, source, kind), *kept], schema=schema)
                columns = [keys, *measure(examples), *examples.columns]
                writer.write(pa.record_batch(columns, schema=pa.schema([*FRONT, *schema])))
            written = writer.close()
        except BaseException:
            writer.abort()
            raise
        if not written["num_examples"]:
            raise ValueError(f"tokenize({dataset!r}): there are no examples.")
        write_manifest(
            folder,
            {
                "examples_in": written["num_examples"],
                "num_ungrouped": 0,
                "num_skipped": 0,
                "skipped": [],
                "id_kind": dataset.id_kind,
                **written,
                "schema": describe_schema(schema),
                "partition": dataset.manifest["partition"],
                "source": {"kind": "tokenized", "column": text, "of": dataset.manifest["source"]},
                "tokenizer": {
                    **tokenizer.save(folder),
                    "column": column,
                    "vocab_size": tokenizer.vocab_size,
                    "separator": tokenizer.separator,
                },
            },
        )
    return open_dataset(out)


def _batches(dataset: GroupedDataset, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """The examples with their groups' keys in front, several small groups at a time."""
    names = [str(number) for number in range(1 + len(columns))]
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for group in dataset:
        key = pa.scalar(to_key(group.id), pa.large_binary())
        for batch in group.batches(columns=columns):
            held.append(
                pa.record_batch([pa.repeat(key, batch.num_rows), *batch.columns], names=names)
            )
            rows += batch.num_rows
            size += batch.nbytes
            if rows >= BATCH_ROWS or size >= BATCH_BYTES:
                yield pa.concat_batches(held)
                held, rows, size = [], 0, 0
    if held:
        yield pa.concat_batches(held)


def _lists(texts: pa.Array, source: TokenSource, kind: pa.DataType) -> pa.Array:
    tokens, offsets = source.encode(texts)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(tokens).cast(kind))
