"""The service: a team's GPUs, requests and tables, on one database. Extras: imported by nobody else."""
