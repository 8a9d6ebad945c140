"""The paper's tables and figures, from a yaml file to a page.

In the order in which a command uses them: `definition` reads an experiment, `plan` makes its runs
(`planned_run`, and `run_state` for what their folders hold), `plan_table` shows them, `run`
computes them here and `cluster` on SLURM, `outcome` writes tables and figures in one of the
`layouts`. `studies`, `verify` and `reruns` make tables of their own. `reproduce` is the way through
all of it.
"""
