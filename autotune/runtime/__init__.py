"""What an application runs: the table, the choice of a kernel, its launch. Numpy and cuda, nothing else.

An exported folder is a copy of this room and of the modules that it imports (`export/package.py`).
"""
