"""How many bytes and words each row of an Arrow array holds, without a Python loop over rows."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# Bytes of text looked at together: they, and what is made of them, stay in a core's cache.
_BLOCK = 1 << 16


def measure(batch: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
    """Bytes and words of every row.

    **Arguments:**

    - `batch`: any record batch.

    **Returns:**

    Two int64 arrays of one entry per row: the bytes of the row's values (UTF-8 bytes of text, item
    sizes of numbers, the sum over lists and structs), and its words: the runs without ASCII white
    space in its text.
    """
    total_bytes = np.zeros(batch.num_rows, np.int64)
    total_words = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        column_bytes, column_words = _measure_array(column)
        total_bytes += column_bytes
        total_words += column_words
    return total_bytes, total_words


def _measure_array(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    kind = array.type
    none = np.zeros(len(array), np.int64)
    if isinstance(array, pa.ExtensionArray):
        return _measure_array(array.storage)
    if pa.types.is_dictionary(kind):
        return _measure_array(array.cast(kind.value_type))
    if pa.types.is_null(kind):
        return none, none
    if pa.types.is_struct(kind):
        total_bytes, total_words = none, none.copy()
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        for child in array.flatten():
            child_bytes, child_words = _measure_array(child)
            total_bytes = total_bytes + child_bytes * valid
            total_words = total_words + child_words * valid
        return total_bytes, total_words
    if pa.types.is_map(kind):
        entries = pa.struct([kind.key_field, kind.item_field])
        array = array.cast(pa.list_(entries))
        kind = array.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _measure_list(array)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        array = array.cast(
            pa.large_string() if pa.types.is_string_view(kind) else pa.large_binary()
        )
        kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        lengths = (
            pc.call_function("binary_length", [array]).fill_null(0).to_numpy(zero_copy_only=False)
        )
        return lengths.astype(np.int64), _count_words(array)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        lengths = (
            pc.call_function("binary_length", [array]).fill_null(0).to_numpy(zero_copy_only=False)
        )
        return lengths.astype(np.int64), none
    # Every other type has a fixed width in bits; a boolean counts as one byte.
    width = max(1, kind.bit_width // 8)
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    return valid.astype(np.int64) * width, none


def _measure_list(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    lengths = (
        pc.call_function("list_value_length", [array]).fill_null(0).to_numpy(zero_copy_only=False)
    )
    # flatten() leaves out what stands under a null, so that the lengths add up to its size.
    inner_bytes, inner_words = _measure_array(array.flatten())
    ends = np.cumsum(lengths, dtype=np.int64)

    def per_row(values: np.ndarray) -> np.ndarray:
        sums = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
        return sums[ends] - sums[ends - lengths]

    return per_row(inner_bytes), per_row(inner_words)


def text_bytes(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """The UTF-8 bytes of a text column without a copy.

    **Arguments:**

    - `array`: a column of type string or large_string; a null counts as the empty text.

    **Returns:**

    All bytes as one uint8 array, and the int64 offsets of the texts in it (one more than texts).
    """
    if array.null_count:
        array = array.fill_null("")
    wide = pa.types.is_large_string(array.type)
    _, offset_buffer, data = array.buffers()
    if offset_buffer is None or len(array) == 0:
        return np.zeros(0, np.uint8), np.zeros(1, np.int64)
    every_offset = np.frombuffer(offset_buffer, np.int64 if wide else np.int32)
    offsets = every_offset[array.offset : array.offset + len(array) + 1].astype(np.int64)
    everything = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return everything[offsets[0] : offsets[-1]], offsets - offsets[0]


def _count_words(array: pa.Array) -> np.ndarray:
    data, offsets = text_bytes(array)
    if not len(data):
        return np.zeros(len(array), np.int64)
    space = _space_bits(data)
    # A word starts where white space, or the text before it, has ended.
    after = space << np.uint64(1)
    after[1:] |= space[:-1] >> np.uint64(63)
    word, bit = offsets >> 6, (offsets & 63).astype(np.uint64)
    np.bitwise_or.at(after, word[:-1], np.uint64(1) << bit[:-1])
    starts = after & ~space
    before = np.zeros(len(starts), np.int64)
    np.cumsum(np.bitwise_count(starts[:-1]), out=before[1:])
    lower = (np.uint64(1) << bit) - np.uint64(1)
    return np.diff(before[word] + np.bitwise_count(starts[word] & lower))


def _space_bits(data: np.ndarray) -> np.ndarray:
    """A bit for each byte, 64 to a number, and at least one bit more: is it ASCII white space?

    That is what str.split() splits at: 9 to 13 and 28 to 32.
    """
    bits = np.zeros((len(data) // 64 + 1) * 8, np.uint8)
    for start in range(0, len(data), _BLOCK):
        piece = data[start : start + _BLOCK]
        # What lies below wraps around to large numbers.
        packed = np.packbits(((piece - 9) < 5) | ((piece - 28) < 5), bitorder="little")
        bits[start // 8 : start // 8 + len(packed)] = packed
    return bits.view("<u8")
