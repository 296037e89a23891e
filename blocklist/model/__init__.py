"""The rules as pure functions and values. Standard library only; times are parameters, in Unix milliseconds."""
