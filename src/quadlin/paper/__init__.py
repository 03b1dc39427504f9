"""The paper: its solvers as baselines, one study per figure or claim, the report, the demo.

Imports every package below; only the command line imports it.
Gives users `quadlin reproduce` and `quadlin demo`.
"""

# From top to bottom:
#   runner      runs the tasks of studies, and keeps what they return
#   report      a page of HTML, and the tables of docs/reproduction.md
#   studies     the paper's figure and its claims: panels, rates and fits, and what they share
#   methods     every solver as a fit that can be observed, those of users included
#   iterations  the solvers that are not ours, on standardised rows
#   problems    known models, and distributions of features
#   demo        `quadlin demo`
