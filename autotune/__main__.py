"""`python -m autotune` is `autotune`."""

from .cli.start import main

main()
