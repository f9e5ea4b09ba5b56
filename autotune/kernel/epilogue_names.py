"""The epilogues that a table may hold, by the names under which they are exported and asked for.

A bias lies along the columns of C, which is what torch's `linear` adds. Copied into exported tables: standard
library only.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..files.arguments import texts
from ..files.errors import UsageError
from .launch import ACTIVATIONS, Epilogue

BIAS = Epilogue(bias="columns")
ACTIVATED = ACTIVATIONS[1:]  # as a call asks for them
EPILOGUES = {
    "bias": BIAS,
    **{name.replace("_", "-"): Epilogue(activation=name) for name in ACTIVATED},
    **{f"bias-{name.replace('_', '-')}": Epilogue("columns", name) for name in ACTIVATED},
}
_NAMES = {epilogue: name for name, epilogue in EPILOGUES.items()}


def name_of(epilogue: Epilogue) -> str:
    """The name that `autotune export-table --epilogue` takes."""
    return _NAMES[epilogue]


def named(names: str | Iterable[str]) -> tuple[Epilogue, ...]:
    """Epilogues by their names, each once. Raises UsageError for a name of none."""
    requested = tuple(dict.fromkeys(texts("epilogues", names)))
    for name in requested:
        if name not in EPILOGUES:
            raise UsageError(f"no epilogue is named {name!r:.60}; pass some of {', '.join(EPILOGUES)}")
    return tuple(EPILOGUES[name] for name in requested)
