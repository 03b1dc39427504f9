"""The paper: its solvers as baselines, one study per figure or claim, the report, the demo.

Imports every package below; only the command line imports it.
Gives users `quadlin reproduce` and `quadlin demo`.
"""

# From top to bottom:
#   runner               runs the tasks of studies, and keeps what they return
#   report               a page of HTML, and the tables of docs/reproduction.md
#   studies              the paper's figure and its claims, in a few files by subject
#   study, methods       what all studies share: tasks, verdicts and power laws; names and pictures
#   settings             what users may change about the panels
#   problems, laws       known models, and distributions of features
#   library              every method as a fit that can be observed
#   iterations, descent  the solvers that are not ours, on standardised rows
#   race                 solvers side by side, those of users included
#   demo                 `quadlin demo`
