"""Classifiers: the log-odds of each class, one class against the rest or all of them together.

Imports `regression` and `rows`.
Gives users `SecondOrderClassifier`.
"""
