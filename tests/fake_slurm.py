"""Put programs in the place of Slurm's, which write down what they get and start nothing."""

from pathlib import Path

# sbatch keeps the files of jobs and numbers them; squeue shows what the test has written.
PROGRAMS = {
    "sbatch": """n=$(ls {folder} | grep -c sh$)
cp "$1" {folder}/$((n + 1)).sh
echo "Submitted batch job $((n + 1))"
""",
    "squeue": "cat {folder}/queue\n",
    "scancel": 'echo "$1" >> {folder}/cancelled\n',
    "srun": "exit 1\n",
}


def write_programs(folder: Path, jobs: Path) -> None:
    """Write the programs to `folder`, which must be on PATH. They keep their files in `jobs`."""
    for path in (folder, jobs):
        path.mkdir()
    (jobs / "queue").touch()
    for name, text in PROGRAMS.items():
        (folder / name).write_text(f"#!/bin/bash\n{text.format(folder=jobs)}")
        (folder / name).chmod(0o755)
