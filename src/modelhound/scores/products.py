"""Large products of which much is known beforehand: sums by class, and squares, which are symmetric.

In:  rows of numbers, and a matrix to add to
Out: the matrix, in place
Nothing here knows what the numbers are.
"""

import torch

__all__ = ["add_by_class", "add_square", "mirror"]

_ROWS_TO_SORT = 2048  # by class in one product: more would spend more on products with 0, fewer would make them small
_FEW_CLASSES = 256
_PANELS = 8  # of a symmetric product, of which only those on and below the diagonal are made


def add_by_class(total: torch.Tensor, labels: torch.Tensor, values: torch.Tensor) -> None:
    """Add each row of `values` to the row of `total` that its label names."""
    # a product and not index_add, which on a GPU adds up in no fixed order; with those classes only that are there
    for some_labels, some in zip(torch.split(labels, _ROWS_TO_SORT), torch.split(values, _ROWS_TO_SORT), strict=True):
        if len(total) <= _FEW_CLASSES:  # nearly all of them are there, and to look is to wait for the device
            members = torch.zeros(len(total), len(some), dtype=values.dtype, device=values.device)
            total.addmm_(members.scatter_(0, some_labels[None], 1.0), some)
            continue
        classes, places = torch.unique(some_labels, return_inverse=True)
        members = torch.zeros(len(classes), len(some), dtype=values.dtype, device=values.device)
        members[places, torch.arange(len(some), device=places.device)] = 1.0
        total[classes] += members @ some


def add_square(total: torch.Tensor, rows: torch.Tensor) -> None:
    """Add rows'rows to `total`, on and below the diagonal only: little more than half the work."""
    step = max(1, -(-len(total) // _PANELS))
    for start in range(0, len(total), step):
        stop = min(start + step, len(total))
        total[start:stop, :stop].addmm_(rows[:, start:stop].T, rows[:, :stop])


def mirror(total: torch.Tensor) -> torch.Tensor:
    """The symmetric matrix whose part on and below the diagonal this is; in place."""
    step = max(1, -(-len(total) // _PANELS))
    for start in range(0, len(total), step):
        stop = min(start + step, len(total))
        total[:start, start:stop] = total[start:stop, :start].T
    return total
