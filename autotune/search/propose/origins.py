"""The generators of points: a trial is stored with this name, so that a database shows which of them pay."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

ENQUEUED = "enqueued"  # lined up by somebody, through Optuna
SEED = "seed"  # a kernel that ships and is expected to do well on such a shape
TRANSFER = "transfer"  # lent: did well on another shape, or on this one elsewhere
RANDOM = "random"  # drawn, without a model
REUSE = "reuse"  # a kernel that was compiled for another shape, while the GPU was idle
FILL = "fill"  # a kernel that was found on other shapes, for the matrix of kernels and shapes
TRANSFERRED = (REUSE, FILL)  # on another shape than that of the trial
POLISH = "polish"  # a step from the best, towards the end
# The model's choice among candidates of these kinds:
NEIGHBOUR = "neighbour"  # one parameter of a good point changed
REPAIRED = "repaired"  # one parameter, and those illegal with it
CARRIED = "carried"  # a good point in another tile
FACTOR = "factor"  # a good point with another way to split k, or another order
MIXTURE = "mixture"  # a few parameters of one point, the others of another
DRAWN = "drawn"  # drawn over the whole set
CLIMBED = "climbed"  # one parameter of a promising candidate changed
MODELLED = (NEIGHBOUR, REPAIRED, CARRIED, FACTOR, MIXTURE, DRAWN, CLIMBED)


def merged(parts: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """All these points, ascending, each once, and the origin of each: the first that names it."""
    names, sizes = np.array(list(parts)), [len(part) for part in parts.values()]
    numbers, first = np.unique(np.concatenate(list(parts.values())), return_index=True)
    return numbers, np.repeat(names, sizes)[first]
