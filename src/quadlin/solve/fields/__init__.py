"""Factorization machines on one-hot fields, fitted by variational inference or Gibbs sampling.

Imports `fits`.
Gives the estimators their machines, and predictions for all pairs of two tables.
"""

# From top to bottom:
#   field_rows, field_patterns  rows split into entities: a field and the columns that follow it
#   field_table, loose_columns  a table of such rows, and slopes of columns that follow no field
#   field_sums                  sums of the rows for one entity, given the others
#   level_posterior             the posterior of its levels, by small systems (level_systems)
#   field_machine               a sweep over all entities
#   variational, gibbs          sweeps until the bound stops rising, or draws
#   label_machine, label_rows   log-odds of labels: variational by label_bounds, or draws
#   polya_gamma                 the curvature of labels, for these draws
#   field_predict               predictions and the library's model of a machine
#   pairwise_predictions        predictions for all pairs of two tables
#   running_machine             the same, batch by batch: field_batches, running_levels
