"""`python -m autotune` is `autotune`."""

from .start import main

main()
