"""What several GPUs give, and what they cost the host: the same search on 1, 2 and 8 replayed GPUs.

    python benchmarks/all_gpus.py --seconds 60 --rate 5

Each GPU measures --rate trials a second of a recorded space, in real time. Prints for each number of GPUs the
trials, as times of those of one, and the processor seconds per trial of all processes, as times of one's.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

RECORDED = Path(__file__).resolve().parents[1] / "studies/recorded/h200.json.gz"
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


def _search(num_gpus: int, seconds: float, rate: float, recording: Path, folder: Path) -> tuple[int, float]:
    """New trials, and processor seconds of the command with all its processes."""
    gpus = ",".join([f"replay:{recording}"] * num_gpus)
    command = [sys.executable, "-m", "autotune", "search", "--gpu", gpus, "--seconds", str(seconds)]
    command += ["--insist", "--db", str(folder / f"{num_gpus}.db"), "--json", "--quiet"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "AUTOTUNE_REPLAY_RATE": str(rate)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    with suppress(ChildProcessError):
        while True:  # those that it left behind
            os.waitpid(-1, 0)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(done.stdout)["num_new"], used_s


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=5.0, help="trials a second of each GPU")
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2, 8])
    parser.add_argument("--recording", type=Path, default=RECORDED)
    options = parser.parse_args()
    print("| GPUs | trials | of one's | processor ms per trial | of one's |\n|---|---|---|---|---|")
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)  # processes of processes are counted here, too
    first: tuple[int, float] | None = None
    with tempfile.TemporaryDirectory() as folder:
        for num_gpus in options.gpus:
            trials, used_s = _search(num_gpus, options.seconds, options.rate, options.recording, Path(folder))
            first = first or (trials, used_s / trials)
            cells = (num_gpus, trials, trials / first[0], 1e3 * used_s / trials, used_s / trials / first[1])
            print("| {} | {:,} | {:.2f} | {:.1f} | {:.2f} |".format(*cells), flush=True)


if __name__ == "__main__":
    main()
