"""A campaign against folders of strangers and moments to be stopped at: `make campaign`, or a slice of it in a test.

Each case is a number: with a seed it says what is done, and what is done already is not done again. A case copies a
run, a model or an estimator, does something to it or to a command while that works on it, and looks at how it ends.
"""
