"""The regressor, and what all estimators share: the base class, the fitted state, `fit`, streams.

Imports `rows`.
Gives the other rooms of `estimators` their base, and users `SecondOrderRegressor`.
"""
