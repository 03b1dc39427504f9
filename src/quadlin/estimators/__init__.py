"""The scikit-learn estimators: they check the input, call a solver and keep the result.

Imports every package below.
Gives users the estimators of `quadlin`.
"""
