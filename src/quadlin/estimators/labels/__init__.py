"""Classifiers: log-odds of each class against the rest, and joint fits of several classes.

Imports `regression` and `rows`.
Gives users `SecondOrderClassifier`.
"""
