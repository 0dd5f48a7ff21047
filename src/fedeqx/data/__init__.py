"""Examples -> groups on disk -> group stream -> cohorts. NumPy, Arrow and Grain; no JAX."""

from ._array_records import ArrayRecordSource as ArrayRecordSource
from ._beam import group_with_beam as group_with_beam
from ._cohorts import Cohort as Cohort
from ._cohorts import Cohorts as Cohorts
from ._cohorts import cohorts as cohorts
from ._csv_files import CsvSource as CsvSource
from ._dataset import GroupedDataset as GroupedDataset
from ._dataset import open as open
from ._group import Group as Group
from ._grouping import group as group
from ._hugging_face import HuggingFaceSource as HuggingFaceSource
from ._inputs import as_source as as_source
from ._json_lines import JsonLinesSource as JsonLinesSource
from ._layout import DatasetFormatError as DatasetFormatError
from ._nested import nested as nested
from ._parquet import ParquetSource as ParquetSource
from ._partition import AbstractDirectPartition as AbstractDirectPartition
from ._partition import AbstractPartition as AbstractPartition
from ._partition import PartitionError as PartitionError
from ._partition import Problem as Problem
from ._partition import by_expression as by_expression
from ._partition import by_field as by_field
from ._partition import by_function as by_function
from ._partition import by_url_domain as by_url_domain
from ._progress import Progress as Progress
from ._records import ArrowSource as ArrowSource
from ._records import RecordSource as RecordSource
from ._simulated import dirichlet as dirichlet
from ._simulated import iid as iid
from ._simulated import lognormal as lognormal
from ._simulated import pachinko as pachinko
from ._simulated import power_law as power_law
from ._simulated import shards as shards
from ._sources import AbstractSource as AbstractSource
from ._sources import Skipped as Skipped
from ._sources import Skips as Skips
from ._sources import SourceError as SourceError
from ._stats import PERCENTILES as PERCENTILES
from ._stats import LabelSkew as LabelSkew
from ._stats import group_counts as group_counts
from ._stats import label_skew as label_skew
from ._stats import letter_values as letter_values
from ._stats import plot_sizes as plot_sizes
from ._stats import stats as stats
from ._stats import write_counts as write_counts
from ._stdlib import python_stdlib as python_stdlib
from ._stdlib import stdlib_package as stdlib_package
from ._subword import SubwordTokenizer as SubwordTokenizer
from ._subword import train_tokenizer as train_tokenizer
from ._text import BYTE_VOCAB_SIZE as BYTE_VOCAB_SIZE
from ._text import SEPARATOR as SEPARATOR
from ._text import Sequences as Sequences
from ._text import decode_bytes as decode_bytes
from ._text import encode_bytes as encode_bytes
from ._text import pack as pack
from ._text_folder import TextFolderSource as TextFolderSource
from ._tfds import TfdsSource as TfdsSource
from ._tokenizing import tokenize as tokenize
from ._tokens import AbstractTokenizer as AbstractTokenizer
from ._tokens import ByteTokenizer as ByteTokenizer
from ._tokens import group_tokens as group_tokens
from ._tokens import load_tokenizer as load_tokenizer
from ._verify import Verification as Verification
from ._verify import verify as verify

__all__ = [
    "BYTE_VOCAB_SIZE",
    "PERCENTILES",
    "SEPARATOR",
    "AbstractDirectPartition",
    "AbstractPartition",
    "AbstractSource",
    "AbstractTokenizer",
    "ArrayRecordSource",
    "ArrowSource",
    "ByteTokenizer",
    "Cohort",
    "Cohorts",
    "CsvSource",
    "DatasetFormatError",
    "Group",
    "GroupedDataset",
    "HuggingFaceSource",
    "JsonLinesSource",
    "LabelSkew",
    "ParquetSource",
    "PartitionError",
    "Problem",
    "Progress",
    "RecordSource",
    "Sequences",
    "Skipped",
    "Skips",
    "SourceError",
    "SubwordTokenizer",
    "TextFolderSource",
    "TfdsSource",
    "Verification",
    "as_source",
    "by_expression",
    "by_field",
    "by_function",
    "by_url_domain",
    "cohorts",
    "decode_bytes",
    "dirichlet",
    "encode_bytes",
    "group",
    "group_counts",
    "group_tokens",
    "group_with_beam",
    "iid",
    "label_skew",
    "letter_values",
    "load_tokenizer",
    "lognormal",
    "nested",
    "open",
    "pachinko",
    "pack",
    "plot_sizes",
    "power_law",
    "python_stdlib",
    "shards",
    "stats",
    "stdlib_package",
    "tokenize",
    "train_tokenizer",
    "verify",
    "write_counts",
]
