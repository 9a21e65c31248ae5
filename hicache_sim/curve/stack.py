"""LRU stack distances of all references at once, in numpy.

The distance of a reference is the rank of its page among all pages, most recently used first, when it is asked for:
LRU of that many pages, or more, hits (Mattson et al., 1970). Two orders of use within a prompt:

- **back to front** is the tree's. A request touches its whole prefix, so a page is always used together with the
  pages before it; read from its last page to its first, every page is used before its parent, and the least recently
  used page is always a leaf. So leaf-first LRU over pages *is* LRU over pages in this order, and the pages that a
  cache of any size holds are closed under prefixes. All ranks are those before the request, which is looked up whole.
- **front to back** is what a cache without a tree sees, one block after the other: it throws out roots first, and
  counts hits behind gaps. It is here to be compared with such caches.

What HiCache does otherwise, and what it costs (a replay tells):
- it evicts whole nodes, so it frees up to a node less a page more than it must. What it holds is still the top of the
  LRU stack, of at least `l1 - longest node + 1` pages once it is full: it hits no more than the curve says at its size,
  and no less than the curve says at that smaller one;
- a prompt that ends inside a node refreshes what lies behind its end (rule `split_refreshes_lower`), which is not LRU.
Without both, replay and curve are equal at every size, to the page; the tests hold them to it.

Rules of this file
- The count behind it: references j < i whose page was used last after the page of i was. Their last uses are a
  permutation, so it is counted by its bits, highest first, each a stable partition: log2(references) passes.
"""

from __future__ import annotations

import numpy as np

from .references import Ints, References


def distances(references: References, leaf_first: bool = True) -> Ints:
    """[references] int64, in the order of `references`: pages LRU needs to hit each; 0 where nothing ever could."""
    previous = references.previous
    if not leaf_first:
        return _ranks(previous, np.arange(len(previous)))
    back = references.back_to_front
    first = references.starts[:-1][references.request]
    return _ranks(np.where(previous < 0, -1, back[previous])[back], first)[back]


def _ranks(previous: Ints, asked: Ints) -> Ints:
    """Rank of each page in the stack, as it is before position `asked`, no later than the reference's own; 0: cold.

    Between its last use and `asked` there are so many references; those to a page used twice in between count once:
    all but the last of them come, as previous uses, after this page's own.
    """
    again = np.flatnonzero(previous >= 0)
    ranks = np.zeros(len(previous), np.int64)
    ranks[again] = asked[again] - previous[again] - later_before(_permutation(previous[again], len(previous)))
    return ranks


def _permutation(values: Ints, limit: int) -> Ints:
    """Distinct values below `limit`, replaced by their ranks."""
    used = np.zeros(limit, np.int64)
    used[values] = 1
    ranks: Ints = (np.cumsum(used) - 1)[values]
    return ranks


def later_before(values: Ints) -> Ints:
    """For each value of a permutation of 0 … n - 1: how many larger ones stand before it. [n] int64."""
    n = len(values)
    narrow = np.int32 if n < 2**31 else np.int64
    order, current = np.arange(n, dtype=narrow), values.astype(narrow)
    larger = np.zeros(n, narrow)
    for bit in reversed(range(max(n - 1, 0).bit_length())):
        # Values that agree above `bit` stand together, in their first order, from `group` on.
        group = (current >> (bit + 1)) << (bit + 1)
        high = (current >> bit) & 1
        highs = np.cumsum(high, dtype=narrow) - high
        ahead = highs - highs[group]
        place = np.where(high, group + (1 << bit) + ahead, np.arange(n, dtype=narrow) - ahead)
        low = high == 0
        larger[order[low]] += ahead[low]
        moved, names = np.empty_like(current), np.empty_like(order)
        moved[place], names[place] = current, order
        current, order = moved, names
    return larger.astype(np.int64)
