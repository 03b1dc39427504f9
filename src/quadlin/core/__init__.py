"""What one pass over the rows computes: moments, blocks and their kernels, sums, and the model.

Imports no other package, and no frame, plot, cluster or deep-learning library.
Gives the others `Rows` (whose `reduce` is a sum over chunks of rows), `Block` (standardised rows as
an operator), `Model` (what is fitted) and `Sums` (the statistics of its residual).
"""
