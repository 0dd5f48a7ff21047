"""Which Arrow types the examples are stored as."""

import pyarrow as pa


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
