"""autotune: finds the best FP32 matrix product kernel for this GPU and these shapes.

    tune          searches the best kernels for shapes (tuning.py)
    Result        its result: `best`, `trials`, `export(folder)`
    export_table  writes the winners of a database as a folder to import
    Dispatcher    runs products with the kernels of such a folder (runtime/dispatcher.py)
    reference     a product in NumPy, summed as kernels of one order sum it (kernel/summation_order.py)
    space         the configs that are worth a trial
    OptunaStorage a database as Optuna's storage: its studies and trials (store/optuna_storage.py)
    Gemm, Config  a problem, and one instance of the kernel
    SearchPolicy  what decides how a search proceeds

Each is loaded at its first use: importing this package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .facts.gemm import Gemm as Gemm
    from .kernel.config import Config as Config
    from .kernel.summation_order import reference as reference
    from .runtime.dispatcher import Dispatcher as Dispatcher
    from .search_policy import SearchPolicy as SearchPolicy
    from .store.optuna_storage import OptunaStorage as OptunaStorage
    from .tuning import Result as Result
    from .tuning import export_table as export_table
    from .tuning import space as space
    from .tuning import tune as tune

__version__ = "0.1.0"

_HOMES = {
    "Config": "kernel.config",
    "Dispatcher": "runtime.dispatcher",
    "Gemm": "facts.gemm",
    "OptunaStorage": "store.optuna_storage",
    "Result": "tuning",
    "SearchPolicy": "search_policy",
    "export_table": "tuning",
    "reference": "kernel.summation_order",
    "space": "tuning",
    "tune": "tuning",
}
__all__ = [
    "Config",
    "Dispatcher",
    "Gemm",
    "OptunaStorage",
    "Result",
    "SearchPolicy",
    "__version__",
    "export_table",
    "reference",
    "space",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
