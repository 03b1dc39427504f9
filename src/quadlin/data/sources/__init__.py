"""Sources of rows: pieces of files and of iterators, and the readers that make numbers of them.

Imports `columns`.
Gives `opening` the class `Source` and a feed for each format of files.
"""
