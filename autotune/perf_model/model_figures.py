"""What a table stores on the speed of a kernel: the figures of the time model (time_model.py).

Separate from the model, which a program that picks in C need not import. Copied into exported tables.
"""

from __future__ import annotations

from typing import Annotated

from ..facts.frozen import frozen
from ..files.bounds import Within

FigureUs = Annotated[float, Within(0, 1e12)]


@frozen()
class ModelFigures:
    """What is known of the speed of one kernel. Fitted when a table is exported."""

    fixed_us: FigureUs  # what any launch costs
    round_us: FigureUs  # per k-step of a wave of resident blocks, however few
    step_us: FigureUs  # per k-step of each block that an SM works through
    memory_efficiency: Annotated[float, Within(1e-9, 1)]  # share of the bandwidth limit that it reaches
    # measured times in the fit; 0: only those of relatives, or rule-of-thumb figures
    num_samples: Annotated[int, Within(0, 1 << 31)]
    # deviation of a modelled time, as far as known; 0 without a fit
    relative_error: Annotated[float, Within(0, 1e12)]
