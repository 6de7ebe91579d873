"""Twenty SIGKILLs at random moments in a run with branches: it ends with the bytes of one that nobody killed.

python benchmarks/kills.py
python benchmarks/kills.py --kills 3    # a quick look

The same command is started again and again, and killed after a random time, until the run has ended and every kill is
used up; after each kill, the checkpoint that each leg calls its latest is read. Then everything the run left behind is
compared with what an undisturbed run left: logs, losses, weights, and every tensor of every checkpoint.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file

SPEC = """
name: small
hidden_size: 32
num_layers: 4
num_experts: 16
experts_per_token: 2
expert_intermediate_size: 16
num_attention_heads: 4
num_key_value_heads: 2
head_dim: 8
layout: mid50x2
"""


def command(folder: Path, run: str) -> list[str]:
    """The run: 120 steps with branches after 40, 80 and 120, and a checkpoint every third step."""
    return [
        sys.executable, "-m", "smelt_match", "train", str(folder / "small.yaml"), "--corpus", str(folder / "corpus"),
        "--run", str(folder / run), "--tokens", str(120 * 4 * 64), "--context", "64", "--rows", "4", "--branches",
        "40,80,120", "--branch-tokens", str(12 * 4 * 64), "--save-every", "3", "--log-every", "1", "--device", "cpu",
    ]  # fmt: skip


def prepare(folder: Path) -> None:
    """The spec and the corpus, the committed sample."""
    (folder / "small.yaml").write_text(SPEC)
    build = [sys.executable, "-m", "smelt_match", "corpus", "build", "--sample", "-o", str(folder / "corpus")]
    subprocess.run(build, check=True, capture_output=True)


def check_latest(run: Path) -> None:
    """Read the checkpoint that each leg calls its latest; an unreadable one is an error."""
    for pointer in run.glob("*/latest"):
        folder = pointer.parent / pointer.read_text().strip()
        files = list(folder.glob("*.safetensors"))
        assert files, f"{folder} is the latest and holds no tensors"
        for file in files:
            load_file(file)


def left_behind(run: Path) -> dict[str, Any]:
    """Bytes of files and tensors of checkpoints, by name; without times."""
    found: dict[str, Any] = {}
    for path in sorted(run.rglob("*")):
        name = str(path.relative_to(run))
        if path.suffix == ".safetensors":
            with safe_open(path, framework="np") as stream:
                found |= {f"{name}: {key}": stream.get_tensor(key).tobytes() for key in sorted(stream.keys())}
        elif path.is_file() and path.name not in ("timings.jsonl", ".lock", "run.json"):
            found[name] = path.read_bytes()
    return found


def whole_run(folder: Path) -> tuple[float, float]:
    """Run undisturbed: seconds until its first step, and until its end."""
    start = time.monotonic()
    process = subprocess.Popen(command(folder, "whole"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    process.stderr.readline()
    first = time.monotonic() - start
    told = process.stderr.read()
    assert process.wait() == 0, told
    return first, time.monotonic() - start


def killed_run(folder: Path, kills: int, first: float, whole: float, seed: int) -> int:
    """Run until the end with so many kills on the way; the number that hit a run that was alive.

    Each comes between half the time until the first step and so late that all find a run that has not ended.
    """
    draw, hits = random.Random(seed), 0
    while True:
        process = subprocess.Popen(command(folder, "killed"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            wait = draw.uniform(0.5 * first, first + 1.2 * (whole - first) / kills) if hits < kills else None
            _, told = process.communicate(timeout=wait)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            hits += 1
            check_latest(folder / "killed")
            continue
        assert process.returncode == 0, told.decode()
        return hits


def main() -> int:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        first, seconds = whole_run(folder)
        hits = killed_run(folder, args.kills, first, seconds, args.seed)
        found, expected = left_behind(folder / "killed"), left_behind(folder / "whole")
    differ = [key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key)]
    print(f"{hits} kills of a run of {seconds:.0f} s; {len(expected)} files and tensors, {len(differ)} differ")
    for key in differ[:10]:
        print(f"  {key}")
    return 1 if differ or hits < args.kills else 0


if __name__ == "__main__":
    sys.exit(main())
