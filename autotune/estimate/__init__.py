"""Counts what a program of torch computes, without a table. Run in a process of the program's own."""
