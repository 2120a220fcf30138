"""Many questions as one command: a spec becomes points, points are solved, rows are kept.

spec      what a YAML file asks for: axes, zipped axes, fixed options, a filter
condition a filter: parsed into comparisons, never evaluated as code
points    the questions themselves, read and refused as ``solve`` does, and their keys
columns   an answer as a row, units in the names of its columns
store     results.sqlite: rows as they arrive, atomically
pool      the local engine: one process a core
cluster   the distributed engine: an existing dask scheduler, or one on Slurm
sweep     all of it in order
export    Parquet, CSV and JSON lines
"""
