"""The service killed again and again while clients write and watch; `python -m tests.crash --kills 200` by hand."""
