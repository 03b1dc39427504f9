"""The paper: its solvers as baselines, one study per figure or claim, the report, the demo.

Imports every package below; only the command line imports it.
Gives users `quadlin reproduce` and `quadlin demo`.
"""

# From top to bottom:
#   runner      runs the tasks of studies, and keeps what they return
#   report      a page of HTML, and the tables of docs/reproduction.md
#   studies     the paper's figure and its claims, in a few files by subject
#   pictures    what is drawn, as numbers
#   methods     every solver as a fit that can be observed, those of users included
#   iterations  the solvers that are not ours, on standardised rows
#   problems    known models, and distributions of features
#   study       what all studies share: tasks, verdicts and power laws
#   demo        `quadlin demo`
