"""Exact nearest rows by inner product on a GPU: products of blocks, and the greatest values of each row of a block.

As on the CPU (`pucache.neighbours.blocked_search`), products are reduced to the maxima of groups, and only the groups
of greatest maximum are looked into. Factors may be float16 with sums in float32; then `SPARE` more rows than wanted
are selected, and compared again in float32. Equal products are ordered by row number: value and number make one
integer key. The host waits once a block of queries, for its result.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ..heads.device_rows import free_memory
from .blocked_search import SPARE, Neighbours, no_neighbours

_GROUP = 16  # neighbouring products whose maximum is taken before the greatest are selected
_MAX_BLOCK_BYTES = 1 << 32  # of the products of a block and all that is made of them
_LOW = (1 << 32) - 1  # the half of a key that holds the row


class DeviceSearch:
    """Rows on a GPU, ready to be compared with blocks of queries.

    Parameters
    ----------
    rows : Tensor of float32, (n, q)
        On the GPU; n >= 1.
    half : bool
        Whether factors of products are float16; for unit rows.
    """

    def __init__(self, rows: Tensor, *, half: bool = True):
        self.n, self._rows, self._half = len(rows), rows, half
        width = (self.n // _GROUP + 1) * _GROUP  # at least one column of no row
        dtype = torch.float16 if half else torch.float32
        self._factors = torch.zeros(width, rows.shape[1], dtype=dtype, device=rows.device)
        self._factors[: self.n] = rows
        self._free = free_memory(rows.device)

    def blocks(self, count: int, k: int) -> Iterator[slice]:
        """Slices of `count` queries to compare at once, by the memory that is free."""
        width, q = self._factors.shape
        candidates = min(k + SPARE, width)
        per_query = 8 * width + candidates * (32 * _GROUP + 12 * q)  # products, maxima, keys; candidates' factors
        step = int(max(1, min(_MAX_BLOCK_BYTES, self._free // 4) // per_query))
        return (slice(start, min(start + step, count)) for start in range(0, count, step))

    def greatest(self, queries: Tensor, k: int, itself: Tensor | None = None) -> Tensor:
        """Find the k rows of greatest inner product with each query; equal ones in the order of their numbers.

        Parameters
        ----------
        queries : Tensor of float32, (b, q)
        k : int
        itself : Tensor of int64, (b,), optional
            A row to leave out for each query; n for none.

        Returns
        -------
        Tensor of int64, (b, at most k)
            `ordered_keys` of the nearest rows, falling, on the GPU.
        """
        if self._half:
            products = torch.mm(queries.half(), self._factors.T, out_dtype=torch.float32)
        else:
            products = torch.mm(queries, self._factors.T)
        products[:, self.n :] = -torch.inf
        if itself is not None:
            products.scatter_(1, itself[:, None], -torch.inf)
        keys = _greatest_of_row(products, k + SPARE if self._half else k)
        if self._half:
            values, columns = values_of(keys), rows_of(keys)
            candidates = self._rows.index_select(0, columns.view(-1).clamp(max=self.n - 1)).view(*columns.shape, -1)
            cosines = candidates.mul_(queries[:, None]).sum(2)
            keys = ordered_keys(cosines.masked_fill_(values == -torch.inf, -torch.inf), columns)
            keys = keys.topk(min(k, keys.shape[1])).values
        return keys


def _greatest_of_row(values: Tensor, count: int) -> Tensor:
    """Keys of the `count` greatest values of each row, falling; all where there are fewer.

    Groups are neighbouring columns, so that of groups of equal maximum the first holds the first column.
    """
    b, width = values.shape
    groups = width // _GROUP
    if groups <= count:
        return ordered_keys(values, torch.arange(width, device=values.device)).topk(min(count, width)).values
    maxima = ordered_keys(values.view(b, groups, _GROUP).amax(2), torch.arange(groups, device=values.device))
    chosen = rows_of(maxima.topk(count).values)
    columns = (chosen[:, :, None] * _GROUP + torch.arange(_GROUP, device=values.device)).view(b, -1)
    return ordered_keys(values.gather(1, columns), columns).topk(count).values


def ordered_keys(values: Tensor, rows: Tensor) -> Tensor:
    """Integers that are ordered as the values; of equal values the lower row has the greater key.

    Parameters
    ----------
    values : Tensor of float32, (b, c)
    rows : Tensor of int64, (b, c) or (c,)
        At least 0, below 2^32.

    Returns
    -------
    Tensor of int64, (b, c)
    """
    bits = (values + 0.0).view(torch.int32)  # -0.0 becomes 0.0
    return ((bits ^ ((bits >> 31) & 0x7FFFFFFF)).long() << 32) | (_LOW - rows)


def values_of(keys: Tensor) -> Tensor:
    """Values in keys of `ordered_keys`."""
    bits = (keys >> 32).int()
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).view(torch.float32)


def rows_of(keys: Tensor) -> Tensor:
    """Rows in keys of `ordered_keys`."""
    return _LOW - (keys & _LOW)


def host_lists(keys: Tensor, k: int) -> Neighbours:
    """Values and rows of keys (b, at least 1) on the host, cut or padded to k; -inf and -1 where there are none."""
    values, rows = no_neighbours(len(keys), k)
    count = min(k, keys.shape[1])
    values[:, :count], rows[:, :count] = values_of(keys[:, :count]).numpy(), rows_of(keys[:, :count]).numpy()
    rows[values == -np.inf] = -1
    return values, rows
