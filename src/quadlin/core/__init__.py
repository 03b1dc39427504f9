"""What one pass over the rows says: arrays, moments, units, blocks, kernels, sums, and the model.

Imports no other room, and no frame, plot, cluster or deep-learning library.
Gives the others `reduce` (a sum over chunks of rows), `Block` (standardised rows as an operator),
`Model` (what is fitted) and `Sums` (what a pass says of its residual).
"""
