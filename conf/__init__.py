"""Settings of the experiments, as Hydra groups of YAML files. No code: this file only gives the folder its import name,
``braidwork.conf``, by which installed experiments find it."""
