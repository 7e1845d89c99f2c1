"""Pure mathematics on records, and `wording` for numbers. Nothing here imports torch, opens a file or reads a clock.

Modules are imported one by one, since a terminal wants the wording without numpy and scipy.
"""
