"""Which layout is best: a CP-SAT model over tables of the cost model, and its judges."""
