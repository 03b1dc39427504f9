"""The paper: its solvers as baselines, one study per figure or claim, the report, the demo.

Imports every room below; only the command line imports it.
Gives users `quadlin reproduce` and `quadlin demo`.
"""
