"""Which Arrow types the examples are stored as."""

import pyarrow as pa

# Before 26, Arrow writes fixed-size lists with nulls among them to Parquet, and cannot read them.
READS_NULLS_AMONG_FIXED_LISTS = int(pa.__version__.split(".")[0]) >= 26


def storable(schema: pa.Schema) -> pa.Schema:
    """The schema with every type that Arrow cannot sort or write replaced by an equivalent one.

    That is the views of text and bytes (which Polars makes), at any depth: they become the large
    types. All other types are kept, extension types and metadata too.
    """
    fields = [field.with_type(_storable_type(field.type)) for field in schema]
    return pa.schema(fields, metadata=schema.metadata)


def _storable_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_struct(kind):
        return pa.struct([_storable_field(field) for field in kind.fields])
    if pa.types.is_large_list(kind):
        return pa.large_list(_storable_field(kind.value_field))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_storable_field(kind.value_field), kind.list_size)
    if pa.types.is_list(kind):
        return pa.list_(_storable_field(kind.value_field))
    return kind


def _storable_field(field: pa.Field) -> pa.Field:
    return field.with_type(_storable_type(field.type))


def column_that_cannot_be_read_back(batch: pa.RecordBatch) -> str | None:
    """The name of the first column that this Arrow would write and not read again, if any."""
    if READS_NULLS_AMONG_FIXED_LISTS:
        return None
    columns = zip(batch.schema.names, batch.columns, strict=True)
    return next((name for name, column in columns if _null_fixed_list(column)), None)


def _null_fixed_list(array: pa.Array) -> bool:
    kind = array.type
    if pa.types.is_fixed_size_list(kind):
        return array.null_count > 0 or _null_fixed_list(array.values)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _null_fixed_list(array.values)
    if pa.types.is_struct(kind):
        return any(_null_fixed_list(array.field(i)) for i in range(kind.num_fields))
    return False
