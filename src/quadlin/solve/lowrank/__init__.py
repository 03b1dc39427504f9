"""Fits of a given rank with given penalties, and their evidence.

Moment estimates, exact step lengths, whitening, Gauss–Newton, restarts and samples.
Imports `core`.
Gives the packages of `solve` their types, the driver, and `polish`, the fit itself.
"""
