"""The rules: pure functions and values, standard library only."""
