"""Using what was learnt: a model that keeps learning new classes, on disk, from Python and from the command line."""
