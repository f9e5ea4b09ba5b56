"""What each command of the CLI composes. Imported when it runs, not before; only here is anything printed."""
