"""Hugging Face data sets as a source."""

import itertools
from collections.abc import Iterator
from typing import Any, final

import pyarrow as pa

from ._extras import missing_extra
from ._sources import BATCH_ROWS, AbstractSource, Skips, pieces


@final
class HuggingFaceSource(AbstractSource):
    """A `datasets.Dataset` or a streaming `datasets.IterableDataset`, read as Arrow."""

    def __init__(self, dataset: Any):
        """**Arguments:**

        - `dataset`: one split, as `datasets.load_dataset(..., split="train")` gives it. Its images
            and sounds stay the encoded bytes that they are stored as, its arrays of fixed shape
            become tensors.
        """
        if isinstance(dataset, dict):
            raise TypeError(
                f"A {type(dataset).__name__} holds several splits: {list(dataset)}. Give one of "
                "them: dataset['train']."
            )
        self.skipped = Skips()
        self._dataset = dataset

    @staticmethod
    def load(
        path: str, name: str | None = None, *, split: str, streaming: bool = True, **options: Any
    ) -> "HuggingFaceSource":
        """A data set of the hub, or of files.

        **Arguments:**

        - `path`, `name`: the data set and its configuration.
        - `split`: such as `"train"` or `"train[:10%]"`.
        - `streaming`: read it while it is downloaded, instead of downloading it first.
        - `options`: what else `datasets.load_dataset` takes.

        **Returns:**

        The source. Raises `ImportError` without the extra `fedeqx[hf]`.
        """
        try:
            import datasets  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise missing_extra("hf", "datasets", "HuggingFaceSource.load") from error
        return HuggingFaceSource(
            datasets.load_dataset(path, name, split=split, streaming=streaming, **options)
        )

    def batches(self, *, skip: bool = False) -> Iterator[pa.RecordBatch]:
        for table in map(_with_files, self._tables()):
            # Hugging Face keeps its own description of the columns there; the types say the same.
            plain = table.replace_schema_metadata(None)
            for batch in plain.to_batches():
                yield from pieces(_without_their_types(batch))

    def describe(self) -> dict[str, Any]:
        info = getattr(self._dataset, "info", None)
        return {
            "kind": "huggingface",
            "name": getattr(info, "dataset_name", None),
            "split": str(getattr(self._dataset, "split", None)),
        }

    def locate(self, row: int) -> str:
        return f"row {row}"

    def total(self) -> int | None:
        return getattr(self._dataset, "num_rows", None)

    def _tables(self) -> Iterator[pa.Table]:
        dataset = self._dataset
        if hasattr(dataset, "num_rows") or _is_arrow(dataset):
            yield from dataset.with_format("arrow").iter(batch_size=BATCH_ROWS)
            return
        # As Arrow, `datasets` would infer the types of each example on its own.
        import datasets  # pyright: ignore[reportMissingImports]

        features = dataset.features
        encoded = features is not None and hasattr(dataset, "decode")
        examples = iter(dataset.decode(False) if encoded else dataset)
        while some := list(itertools.islice(examples, BATCH_ROWS)):
            batch = datasets.Dataset.from_list(some, features=features)
            features = batch.features
            yield batch.with_format("arrow")[:]


def _is_arrow(dataset: Any) -> bool:
    """Whether a streaming data set comes as Arrow, as those of files do."""
    return getattr(getattr(dataset, "_ex_iterable", None), "iter_arrow", None) is not None


def _with_files(table: pa.Table) -> pa.Table:
    """The bytes of images and sounds of which the data set holds the paths alone."""
    # Where their description is missing, there is none of these.
    if b"huggingface" not in (table.schema.metadata or {}):
        return table
    from datasets.table import (  # pyright: ignore[reportMissingImports]
        embed_table_storage,
    )

    return embed_table_storage(table)


def _without_their_types(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Hugging Face's own extension types as Arrow's, which are read without its package."""
    columns = [_without_their_type(column) for column in batch.columns]
    return pa.record_batch(columns, names=batch.schema.names)


def _without_their_type(column: pa.Array) -> pa.Array:
    if not type(column.type).__module__.startswith("datasets."):
        return column
    shape = getattr(column.type, "shape", (None,))
    values = column.storage
    if None in shape or values.null_count:
        return values
    for _ in shape:
        values = values.flatten()
    kind = pa.fixed_shape_tensor(values.type, shape)
    size = kind.storage_type.list_size
    return pa.ExtensionArray.from_storage(kind, pa.FixedSizeListArray.from_arrays(values, size))
