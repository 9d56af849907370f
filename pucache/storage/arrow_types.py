"""What Arrow's types hold, for whoever reads a column: text, bytes, numbers, lists of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow
from pyarrow import parquet, types

from .table_formats import as_text

_MOST_FOOTER = 1 << 30  # bytes of a text in it: an export holds its failures there


def open_parquet(source: Any) -> Any:
    """Open a file or stream to read it page by page: with pre-buffering, or without a buffer, whole columns stay."""
    return parquet.ParquetFile(
        source,
        pre_buffer=False,
        buffer_size=1 << 20,
        page_checksum_verification=True,  # of pages that have a checksum
        thrift_string_size_limit=_MOST_FOOTER,
    )


def plain_type(kind: Any) -> Any:
    """The type of the values, of a dictionary, of runs, or of an extension."""
    while True:
        if isinstance(kind, pyarrow.BaseExtensionType):
            kind = kind.storage_type
        elif types.is_dictionary(kind) or types.is_run_end_encoded(kind):
            kind = kind.value_type
        else:
            return kind


def is_text(kind: Any) -> bool:
    """Whether the values are text."""
    kind = plain_type(kind)
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def is_bytes(kind: Any) -> bool:
    """Whether the column itself holds bytes of any length, such as images."""
    return types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)


def holds_bytes(kind: Any) -> bool:
    """Whether the values are bytes."""
    kind = plain_type(kind)
    return is_bytes(kind) or types.is_fixed_size_binary(kind)


def is_key(kind: Any) -> bool:
    """Whether the values can be keys: text, bytes of text, or integers."""
    return is_text(kind) or holds_bytes(kind) or types.is_integer(plain_type(kind))


def is_cell(kind: Any) -> bool:
    """Whether a value can be written as the text of one cell; bytes can where they are text."""
    plain = plain_type(kind)
    simple = types.is_primitive(plain) or types.is_decimal(plain) or types.is_null(plain)
    return is_text(kind) or holds_bytes(kind) or (simple and not types.is_interval(plain))


def floats_of(kind: Any) -> np.dtype | None:
    """Type of the numbers in a column of lists of floats; None for another column."""
    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_list_view, types.is_large_list_view)
    kind = kind.storage_type if isinstance(kind, pyarrow.BaseExtensionType) else kind
    if not any(is_lists(kind) for is_lists in lists) or not types.is_floating(kind.value_type):
        return None
    return np.dtype(kind.value_type.to_pandas_dtype())


def texts(column: Any) -> list[str | None]:
    """Cells of a column as text, None where there is none; raises ValueError where bytes are not UTF-8."""
    kind = plain_type(column.type)
    if types.is_floating(kind) or (types.is_temporal(kind) and not types.is_interval(kind)):
        if column.type != kind:  # no cast knows all dictionaries
            column = pyarrow.array(column.to_pylist(), kind)
        values = column.cast(pyarrow.string()).to_pylist()  # the shortest digits that name a float32
        return [as_text(float(value)) if value else None for value in values] if types.is_floating(kind) else values
    values = column.to_pylist()
    if is_text(kind) and not isinstance(column.type, pyarrow.BaseExtensionType):
        return values
    return [None if value is None else as_text(value) for value in values]
