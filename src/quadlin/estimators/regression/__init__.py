"""The regressor, and what all estimators share: fitting, the fitted state, predictions, streams.

Imports `rows`.
Gives the other rooms of `estimators` their base, and users `SecondOrderRegressor`.
"""
