"""The scikit-learn estimators: they check what comes in, call a solver and keep what it found.

Imports every room below.
Gives users the estimators of `quadlin`.
"""
