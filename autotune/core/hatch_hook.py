"""Builds the core when a wheel is made or a checkout is installed: the wheel is for one platform then.

Without a C compiler the wheel holds no library, suits any platform, and can search, but not serve.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_BUILD = Path(__file__).with_name("build.py")


class CoreHook(BuildHookInterface[Any]):
    """Found by hatchling, which names the file in pyproject.toml."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        core = runpy.run_path(str(_BUILD))
        try:
            library = core["build"]()
        except core["NotBuilt"] as fault:
            self.app.display_warning(f"autotune will serve no products from tables: {fault}")
            return
        build_data["pure_python"] = False
        build_data["tag"] = core["wheel_tag"](library)
        build_data["artifacts"].append(f"/autotune/core/{library.name}")
