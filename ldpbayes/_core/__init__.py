"""Internal tools that all other modules use: checks of arguments, pytrees, tracing, printing, and warnings."""
