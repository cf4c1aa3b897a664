"""The only room that reaches into private parts of other libraries, or patches them.

Each function says what for, where the library has it, and since when it is known to be there. The
list is complete: tests/test_private_reaches.py finds reaches elsewhere. An upgrade of a library is
work in this room alone. Tried with torch 2.14 and 2.15, Lightning 2.6.6, Hydra 1.3.8, Optuna 5.0.
"""
