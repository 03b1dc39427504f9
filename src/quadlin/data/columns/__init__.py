"""Columns and their values: names, text, levels, one-hot fields, ids, errors.

Imports `core`.
Gives the rooms of `data` and the estimators the encoder of text columns and the search for fields.
"""
