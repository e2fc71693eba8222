"""Job files of other clusters: `composesim export` writes them, and `-f FILE` reads them."""

ENTRY_POINTS = {
    "composesim.commands": {"export": "compose_sim.plugins.job_files.cli.command:command"},
    "composesim.job_readers": {"clusters": "compose_sim.plugins.job_files.app.job_file"},
    "composesim.job_writers": {"slurm": "compose_sim.plugins.job_files.app.job_file:export"},
}
SUMMARIES = {
    "export": "Print the job that runs a script on a real cluster.",
    "slurm": "With --engine slurm, DIR gets a job for sbatch and the copy, as `composesim export slurm` writes it.",
}
AFTER = {"export": "render"}
