"""What a message tells the user to install if a part is missing.

Messages name the missing package, not an extra of autotune: an extra works only if the package index has
autotune itself. pyproject.toml states the same requirements; a test compares the two.
"""

from __future__ import annotations

NVRTC = "cuda-toolkit[nvrtc]==13.*"
CUBLAS = "cuda-toolkit[cublas]==13.*"
SANITIZER = "cuda-toolkit[sanitizer]==13.*"
JINJA = "jinja2>=3.1"
STARLETTE = "starlette>=0.45"
UVICORN = "uvicorn>=0.34"
POSTGRESQL = "psycopg[binary]>=3.2"
CRYPTOGRAPHY = "cryptography>=43"
PROMETHEUS = "prometheus-client>=0.21"
RAY = "ray>=2.40"
DASHBOARD = "optuna-dashboard>=0.20"


def pip_install(requirement: str) -> str:
    """The command that installs a requirement, quoted for a shell."""
    return f"pip install '{requirement}'"
