"""TFDS builders as a source."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, final

import pyarrow as pa

from ._extras import missing_extra
from ._records import RecordSource, Unreadable
from ._sources import AbstractSource


@final
class TfdsSource(AbstractSource):
    """One split of a TFDS builder, read from ArrayRecord files without TensorFlow."""

    def __init__(
        self,
        builder: Any,
        *,
        split: str,
        decoders: Mapping[str, Any] | None = None,
        data_dir: str | Path | None = None,
    ):
        """**Arguments:**

        - `builder`: a builder that was prepared with `file_format="array_record"`; or the name of
            one, which is then downloaded and prepared.
        - `split`: such as `"train"` or `"train[:10%]"`.
        - `decoders`: as TFDS takes them. Images whose shapes differ are stored as the encoded bytes
            with `{"image": tfds.decode.SkipDecoding()}`.
        - `data_dir`: where a builder given by name has its files.

        Text features become text, all others keep their types and shapes. Raises `ImportError`
        without the extra `fedeqx[tfds]`, and `ValueError` where the split cannot be opened.
        """
        tfds = _library()
        if isinstance(builder, str):
            builder = tfds.builder(builder, data_dir=data_dir, file_format="array_record")
            builder.download_and_prepare()
        self._name = builder.info.full_name
        self._split = split
        try:
            self._data = builder.as_data_source(split, decoders=decoders)
        except Exception as error:  # TFDS raises errors of many kinds.
            raise ValueError(
                f"The split {split!r} of {self._name} cannot be opened ({error}). Give one of "
                f"{list(builder.info.splits)}, of a builder that was prepared as ArrayRecord: "
                "builder(file_format='array_record'), then download_and_prepare()."
            ) from error
        skipped = decoders or {}
        features = {
            name: feature for name, feature in builder.info.features.items() if name not in skipped
        }
        self._records = RecordSource(_Records(self._data, features))
        self.skipped = self._records.skipped

    def batches(self, *, skip: bool = False) -> Iterator[pa.RecordBatch]:
        return self._records.batches(skip=skip)

    def describe(self) -> dict[str, Any]:
        return {"kind": "tfds", "name": self._name, "split": self._split}

    def locate(self, row: int) -> str:
        return self._records.locate(row)

    def total(self) -> int | None:
        return len(self._data)


def _library() -> Any:
    try:
        import tensorflow_datasets  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise missing_extra("tfds", "tensorflow-datasets", "TfdsSource") from error
    return tensorflow_datasets


@final
class _Records:
    """The examples with their texts decoded, as often as they are asked for."""

    def __init__(self, data: Any, features: dict[str, Any]):
        self._data = data
        self._features = features

    def __iter__(self) -> Iterator[Any]:
        readers = {name: _reader(feature) for name, feature in self._features.items()}
        for number in range(len(self._data)):
            example = dict(self._data[number])
            name = ""
            try:
                for name, reader in readers.items():
                    if reader is not None:
                        example[name] = reader(example[name])
            except UnicodeDecodeError as error:
                yield Unreadable(
                    f"the text {name!r} is not UTF-8 ({error}). Keep its bytes: "
                    "decoders={...: tfds.decode.SkipDecoding()}."
                )
            else:
                yield example


def _reader(feature: Any) -> Callable[[Any], Any] | None:
    """What makes text of the bytes in a feature's values; `None` where there is no text in them."""
    features = _library().features
    if isinstance(feature, features.Text):
        return lambda value: value.decode() if isinstance(value, bytes) else value
    if isinstance(feature, features.Sequence):
        inner = feature.feature
        # A sequence of dictionaries is given as a dictionary of sequences.
        if isinstance(inner, features.FeaturesDict):
            return _of_dictionary({name: _each(one) for name, one in inner.items()})
        return _each(inner)
    if isinstance(feature, features.FeaturesDict):
        return _of_dictionary({name: _reader(one) for name, one in feature.items()})
    return None


def _each(feature: Any) -> Callable[[Any], Any] | None:
    reader = _reader(feature)
    return None if reader is None else lambda values: [reader(value) for value in values]


def _of_dictionary(
    readers: dict[str, Callable[[Any], Any] | None],
) -> Callable[[Any], Any] | None:
    some = {name: reader for name, reader in readers.items() if reader is not None}
    if not some:
        return None
    return lambda value: {**value, **{name: reader(value[name]) for name, reader in some.items()}}
