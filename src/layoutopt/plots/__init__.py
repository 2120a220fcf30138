"""Pictures of sweeps.

    series   rows of a store as curves: what varies names them, what does not is the title
    style    colours that colour-blind people tell apart, axes of GPU counts, files
    lines    days and MFU against GPUs
    pareto   cost against days
    bars     memory and the step, part by part, by cluster size
    heatmap  days over tp and pp

matplotlib (the ``plot`` extra) is imported when a picture is drawn.
"""
