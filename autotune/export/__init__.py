"""From the results of searches to a folder that an application imports: which kernels, their figures, their
cubins. `exporter` composes, `package` writes, `check` says whether a folder is right."""
