"""`python -m autotune` is `autotune`."""

from .cli import main

main()
