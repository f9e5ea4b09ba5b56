"""What a program has of a server of tables: it names shapes to it, and takes tables that are signed.

Nothing of this room is imported unless AUTOTUNE_SERVER is set. Copied into exported tables.
"""
