"""Slurm's hooks: an allocation for each job, by `Prolog=`, `TaskProlog=` and `Epilog=`."""
