"""Classifiers: log-odds of each class against the rest, and probabilities of several classes.

Imports `regression` and `rows`.
Gives users `SecondOrderClassifier`.
"""
