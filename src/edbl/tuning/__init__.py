"""Searches for settings of a method, on held-out training images, with Optuna's samplers and pruners."""
