"""The paper: its solvers as baselines, one study per figure or claim, the report, the demo.

Imports every room below; only the command line imports it.
Gives users `quadlin reproduce` and `quadlin demo`.
"""

# From top to bottom:
#   runner, execution, results  runs the tasks of studies, and keeps what they return
#   report, page                a page of HTML, and the tables of docs/reproduction.md
#   studies                     a module per claim; panels is the paper's figure
#   study, methods, trend       what all studies share: tasks and verdicts, pictures, power laws
#   problems, laws              known models, and distributions of features
#   race, solver, settings      solvers side by side, those of users included
#   library, descent, printed   the solvers: ours, gradient descent, and Algorithm 1 as printed
#   standardised                rows as the baselines take them
#   demo                        `quadlin demo`
