"""What a grouped data set is on disk: Parquet shards, an index of groups, a manifest."""

import base64
import json
from pathlib import Path
from typing import Any

import pyarrow as pa

FORMAT = "fedeqx-groups"
VERSION = 1
GROUP_COLUMN = "group_id"
MANIFEST_NAME = "manifest.json"
INDEX_NAME = "index.arrow"
# Of data sets of tokens: what made them.
TOKENIZER_NAME = "tokenizer.json"
# A multiple of two, so that the place of an entry is a shift and a mask.
INDEX_CHUNK = 1 << 16


class DatasetFormatError(ValueError):
    """A folder that is not a grouped data set, or is a damaged one."""


def shard_name(number: int) -> str:
    """The file name of a shard; names sort as the shards do."""
    return f"groups-{number:05d}.parquet"


def index_schema(id_type: pa.DataType) -> pa.Schema:
    """The index of groups: one row per group, in the order of the shards."""
    return pa.schema(
        [
            pa.field(GROUP_COLUMN, id_type, nullable=False),
            pa.field("shard", pa.int32(), nullable=False),
            pa.field("first_row", pa.int64(), nullable=False),
            pa.field("examples", pa.int64(), nullable=False),
            pa.field("bytes", pa.int64(), nullable=False),
            pa.field("words", pa.int64(), nullable=False),
        ]
    )


def describe_schema(schema: pa.Schema) -> dict[str, Any]:
    """The examples' schema for the manifest: readable, and exact."""
    return {
        "columns": {field.name: str(field.type) for field in schema},
        "arrow": base64.b64encode(schema.serialize().to_pybytes()).decode(),
    }


def restore_schema(described: dict[str, Any]) -> pa.Schema:
    """The schema that `describe_schema` described."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(described["arrow"])))


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest. A folder without one does not open, so it is written last."""
    text = json.dumps({"format": FORMAT, "version": VERSION, **manifest}, indent=2)
    (folder / MANIFEST_NAME).write_text(text + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of the data set in `folder`, checked for format and version."""
    if not folder.is_dir():
        raise FileNotFoundError(
            f"There is no grouped data set at {folder}: no such folder. Make one with "
            "fedeqx.data.group(source, by=..., out=...)."
        )
    file = folder / MANIFEST_NAME
    if not file.is_file():
        raise DatasetFormatError(
            f"{folder} is not a grouped data set: it has no {MANIFEST_NAME}. Give the folder that "
            "fedeqx.data.group wrote (its `out`)."
        )
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
        found = manifest["format"], manifest["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise DatasetFormatError(
            f"{file} is damaged ({error!r}). Group the source again with overwrite=True."
        ) from error
    if found != (FORMAT, VERSION):
        raise DatasetFormatError(
            f"{file} has format {found[0]!r} version {found[1]!r}; this fedeqx reads {FORMAT!r} "
            f"version {VERSION}. Install the fedeqx that wrote it, or group the source again."
        )
    return manifest
