"""What an estimator is given: parameters, columns, labels, checked before anything is computed.

Imports the rooms below `estimators`.
Gives the other rooms of `estimators` rows that can be fitted, or an error that says why not.
"""
