"""Some kills of workers and nodes; `make bench-cluster` has fifty."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent.parent / "benchmarks" / "cluster_faults.py"


@pytest.mark.slow
def test_rollouts_survive_the_loss_of_workers_and_nodes():
    command = [sys.executable, str(PROGRAM), "--kills", "4", "--seed", "3", "--jobs", "rollouts"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2_000:]
    assert "0 runs ended with an error that names what was lost, 0 with other numbers" in done.stdout
