"""Recorded spaces: what each config of a set came to on some GPU, written, read, and searched without one."""
