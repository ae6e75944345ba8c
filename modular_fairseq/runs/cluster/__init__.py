"""Make runs as jobs: on a cluster with Slurm, or in the background of this machine.

submitit submits the jobs. A job calls the command that has submitted it, for one run alone.
"""
