"""The input of an estimator: parameters, columns and labels, checked before any computation.

Imports the rooms below `estimators`.
Gives the other rooms of `estimators` rows that can be fitted, or an error that says why not.
"""
