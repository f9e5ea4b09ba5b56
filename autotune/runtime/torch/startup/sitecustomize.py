"""Python runs this at the start of each process that a routed program starts: its products are routed, too.

torch_program.py puts this folder into PYTHONPATH. The table is loaded when torch starts CUDA: processes
without either are as ever. Copied into exported tables. Older Pythons, for which the table is not, may read
this. It imports little: pathlib would take as long as all the rest.
"""

from __future__ import annotations

import importlib
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_PRIVATE = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))
_FOLDER = os.path.dirname(_PRIVATE)


class AfterTorch:
    """Finds torch as all others do, and is told when it has been loaded; called by Python's import."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        others = [one for one in sys.meta_path if one is not self and hasattr(one, "find_spec")]
        found: Any = next(filter(None, (one.find_spec(name, path, target) for one in others)), None)
        if found is not None and hasattr(found.loader, "exec_module"):
            load = found.loader.exec_module
            found.loader.exec_module = lambda module: self.after(load, module)
        return found

    def after(self, load: Any, module: Any) -> None:
        load(module)
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            module.cuda._lazy_call(_route)


def _route() -> None:
    """Called by torch when it starts CUDA, for which a fault here would be its own."""
    from importlib.util import module_from_spec, spec_from_file_location

    try:
        name, private = os.path.basename(_FOLDER), os.path.basename(_PRIVATE)
        if name not in sys.modules:
            place = os.path.join(_FOLDER, "__init__.py")
            spec: Any = spec_from_file_location(name, place)
            sys.modules[name] = module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])
        program = importlib.import_module(f"{name}.{private}.runtime.torch.torch_program")
        program.route_process(sys.modules[name].torch)
    except Exception as error:
        sys.stderr.write(f"process {os.getpid()}: products are not routed: {error}\n")


sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _HERE]
sys.meta_path.insert(0, AfterTorch())
_own = sys.modules.pop(__name__)
try:
    importlib.import_module(__name__)  # the one that this one hides
except ImportError:
    sys.modules[__name__] = _own
