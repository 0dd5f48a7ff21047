"""Examples -> groups on disk -> group stream -> cohorts. NumPy, Arrow and Grain; no JAX."""

from ._cohorts import Cohort as Cohort
from ._cohorts import Cohorts as Cohorts
from ._cohorts import cohorts as cohorts
from ._dataset import Group as Group
from ._dataset import GroupedDataset as GroupedDataset
from ._dataset import open as open
from ._grouping import group as group
from ._layout import DatasetFormatError as DatasetFormatError
from ._partition import AbstractPartition as AbstractPartition
from ._partition import ByField as ByField
from ._partition import ByFunction as ByFunction
from ._partition import PartitionError as PartitionError
from ._sources import AbstractSource as AbstractSource
from ._sources import ArrowSource as ArrowSource
from ._sources import RecordSource as RecordSource
from ._sources import SourceError as SourceError
from ._sources import TextFolderSource as TextFolderSource
from ._stdlib import python_stdlib as python_stdlib
from ._stdlib import stdlib_package as stdlib_package
from ._text import BYTE_VOCAB_SIZE as BYTE_VOCAB_SIZE
from ._text import SEPARATOR as SEPARATOR
from ._text import Sequences as Sequences
from ._text import decode_bytes as decode_bytes
from ._text import encode_bytes as encode_bytes
from ._text import pack as pack

__all__ = [
    "BYTE_VOCAB_SIZE",
    "SEPARATOR",
    "AbstractPartition",
    "AbstractSource",
    "ArrowSource",
    "ByField",
    "ByFunction",
    "Cohort",
    "Cohorts",
    "DatasetFormatError",
    "Group",
    "GroupedDataset",
    "PartitionError",
    "RecordSource",
    "Sequences",
    "SourceError",
    "TextFolderSource",
    "cohorts",
    "decode_bytes",
    "encode_bytes",
    "group",
    "open",
    "pack",
    "python_stdlib",
    "stdlib_package",
]
