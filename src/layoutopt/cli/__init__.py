"""The command line: reads options, calls one function, prints, gives an exit code."""
