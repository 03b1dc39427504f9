"""Sources of rows: pieces of files and iterators, and the readers that turn them into numbers.

Imports `columns`.
Gives `opening` the class `Source` and a feed for each format of files.
"""
