"""Speed of a training step of ours and of transformers' on the same shapes, side by side, and what a loop costs.

python benchmarks/train.py
python benchmarks/train.py --shapes nano --rounds 3    # a quick look
python benchmarks/train.py --threads 1                 # processor time of one thread: for a machine that is busy
python benchmarks/train.py --json train.json

A step is forward and backward pass with the balancing loss, clipping, and fused AdamW, in float32 and under bfloat16
autocast: of our trainer, and of `Qwen3MoeForCausalLM` with every experts implementation that transformers runs here.
Both have the same weights, tokens and optimizer, and one process with the same settings of the allocator, which this
script sets before it starts itself again. Rounds take turns, so that a busy machine slows all sides; the best round of
each counts. The last line of a shape compares what each side's user would train with: the fastest of all.

Loop overhead is the step time of the two matches of a baseline (uniform heads, split heads) over the baseline's own:
their training FLOPs per token are equal, so that what is above 1 is the price of narrow layers and of more visits.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",  # no fresh pages for each large tensor
    "MALLOC_TRIM_THRESHOLD_": str(2**36),
    "MALLOC_TOP_PAD_": str(2**26),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
if __name__ == "__main__" and any(os.environ.get(name) != value for name, value in ALLOCATOR.items()):
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ALLOCATOR)

import numpy as np  # noqa: E402
import torch  # noqa: E402
from model import IMPLEMENTATIONS, Timer, their_step, theirs  # noqa: E402

from smelt_match.spec.family import countable, expand  # noqa: E402
from smelt_match.spec.model import ModelSpec  # noqa: E402
from smelt_match.train.batches import Batch  # noqa: E402
from smelt_match.train.config import TrainConfig  # noqa: E402
from smelt_match.train.engine import Engine  # noqa: E402
from smelt_match.train.world import World  # noqa: E402

GOAL = 1.5
DTYPES = ["float32", "bfloat16"]
LEFT_OUT = {("eager", "bfloat16")}  # seven times slower than grouped_mm at nano, and 14 GB of generated code at 100M
# What a step cannot do without: products, attention, the optimizer.
SHARED = frozenset({
    "aten::mm", "aten::addmm", "aten::bmm", "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward", "aten::_fused_adamw_",
})  # fmt: skip
# Name of the spec, tokens of a row, rows, layers that are built (a stack of equal layers; None for all).
SHAPES = {"nano": ("nano_s85", 512, 4, None), "100m": ("100m_s85", 1024, 4, 2)}
V = 512
# What `smelt-match solve --baseline nano_s85 --loop mid50x2` finds.
LOOPED: dict[str, dict[str, int]] = {
    "uniform": {"hidden_size": 116, "num_experts": 105, "expert_intermediate_size": 30, "head_dim": 22},
    "split": {
        "hidden_size": 124, "num_experts": 105, "expert_intermediate_size": 28, "loop_num_attention_heads": 2,
        "loop_num_key_value_heads": 1,
    },
}  # fmt: skip


def shape(name: str) -> tuple[ModelSpec, Batch]:
    """A spec that both sides can build, and a batch of whole rows: transformers knows no packed documents here."""
    spec_name, tokens, rows, layers = SHAPES[name]
    spec = countable(expand(spec_name)[0])
    spec = spec.changed(qk_norm="head", vocab_size=V, num_layers=layers or spec.num_layers)
    return spec, _batch(rows, tokens)


def _batch(rows: int, tokens: int) -> Batch:
    ids = np.random.default_rng(0).integers(0, V, (rows, tokens))
    return Batch(ids, np.zeros((rows, tokens), np.int32), np.concatenate((ids[:, 1:], np.full((rows, 1), -100)), 1))


def engine(spec: ModelSpec, batch: Batch) -> Engine:
    """Our trainer for a batch."""
    rows, context = batch.tokens_BS.shape
    config = TrainConfig(
        spec=spec, corpus="", corpus_digest="", context=context, rows=rows, micro_rows=rows, steps=1, branch_steps=1,
        learning_rate=1e-4, warmup_steps=0, validation_tokens=1,
    )  # fmt: skip
    return Engine(config, World(torch.device("cpu")))


class Theirs:
    """A training step of transformers' model, with our optimizer's settings."""

    def __init__(self, ours: Engine, implementation: str, batch: Batch) -> None:
        self.model = theirs(ours.config.spec, ours.model, implementation)
        decayed = [p for p in self.model.parameters() if p.dim() > 1]
        rest = [p for p in self.model.parameters() if p.dim() <= 1]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), fused=True)
        self.tokens = torch.from_numpy(batch.tokens_BS)
        self.autocast = ours.autocast  # in whatever precision ours runs

    def step(self) -> float:
        """Forward, backward, clip, update."""
        with self.autocast():
            loss = their_step(self.model, self.tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()


def side_by_side(name: str, args: argparse.Namespace, timer: Timer) -> dict[str, Any]:
    """Our step and theirs on one shape, in each precision."""
    spec, batch = shape(name)
    ours = engine(spec, batch)
    sides: dict[str, Any] = {each: Theirs(ours, each, batch) for each in args.implementations}
    tokens = batch.tokens_BS.size
    print(f"\n{name}: {spec.num_layers} layers, H {spec.hidden_size}, I {spec.expert_intermediate_size}, "
          f"{spec.experts_per_token} of {spec.num_experts} experts, V {V}, {tokens:,} tokens a step")  # fmt: skip

    def own_step() -> float:
        step = ours.step(batch, 1e-4)
        return step.loss + 0.01 * step.balance_loss

    steps = {"ours": own_step} | {side: them.step for side, them in sides.items()}
    pairs = [pair for pair in product(steps, args.dtypes) if pair not in LEFT_OUT]
    losses: dict[tuple[str, str], float] = {}

    def run(side: str, dtype: str) -> None:
        losses.setdefault((side, dtype), steps[side]())

    for _ in range(args.rounds + 1):
        for side, dtype in pairs:
            ours.config = ours.config.model_copy(update={"dtype": dtype})
            timer(side, f"{name}, {dtype}", partial(run, side, dtype))
    for side, dtype in pairs:
        apart = abs(losses[side, dtype] - losses["ours", dtype])
        assert apart < (2e-3 if dtype == "float32" else 2e-2), losses
    speeds = {pair: tokens / timer.best(pair[0], f"{name}, {pair[1]}") for pair in pairs}
    for (side, dtype), speed in speeds.items():
        median = tokens / timer.median(side, f"{name}, {dtype}")
        print(f"  {side:10}  {dtype:8} {speed:9,.0f} tokens/s   median {median:9,.0f}")
    result: dict[str, Any] = {"tokens_per_second": {", ".join(pair): speed for pair, speed in speeds.items()}}
    for dtype in args.dtypes:
        ratio, (fastest, _) = faster(speeds, [dtype])
        ours.config = ours.config.model_copy(update={"dtype": dtype})
        share = shared(own_step)
        print(f"  {dtype}: {ratio:.2f}x of transformers' fastest ({fastest}). {share:.0%} of our time is products, "
              f"attention kernels and AdamW;\n    with nothing else it would be {ratio / share:.2f}x")  # fmt: skip
        result[dtype] = {"ratio": ratio, "fastest": fastest, "shared": share}
    ratio, fastest_pair = faster(speeds, args.dtypes)
    print(f"  each side in its fastest precision: {ratio:.2f}x (transformers: {', '.join(fastest_pair)}); "
          f"goal {GOAL}x: {'met' if ratio >= GOAL else 'missed'}")  # fmt: skip
    return result | {"ratio": ratio, "fastest": fastest_pair}


def faster(speeds: dict[tuple[str, str], float], dtypes: list[str]) -> tuple[float, tuple[str, str]]:
    """Our fastest over their fastest in some precisions, and which that is of theirs."""
    found = {pair: speed for pair, speed in speeds.items() if pair[1] in dtypes}
    theirs = max((pair for pair in found if pair[0] != "ours"), key=lambda pair: found[pair])
    return max(found["ours", dtype] for dtype in dtypes) / found[theirs], theirs


def shared(step: Callable[[], object]) -> float:
    """The share of a step's time that no other code around the same operations can save."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        step()
    times = {event.key: event.self_cpu_time_total for event in profiled.key_averages()}
    return sum(time for key, time in times.items() if key in SHARED) / sum(times.values())


def overhead(args: argparse.Namespace, timer: Timer) -> dict[str, float]:
    """Step time of the matches over their baseline's."""
    arms = {
        "baseline": countable(expand("nano_s85")[0]),
    }
    arms |= {name: arms["baseline"].changed(name=name, layout="mid50x2", **dims) for name, dims in LOOPED.items()}
    batch = _batch(4, 512)
    engines = {name: engine(spec.changed(vocab_size=V), batch) for name, spec in arms.items()}
    for _ in range(args.rounds + 1):
        for name, each in engines.items():
            timer(name, "loop", lambda each=each: each.step(batch, 1e-4))  # type: ignore[misc]
    print("\nloop overhead: nano_s85 and its matches as mid50x2, 2,048 tokens a step")
    ratios = {name: timer.best(name, "loop") / timer.best("baseline", "loop") for name in engines}
    for name, ratio in ratios.items():
        speed = batch.tokens_BS.size / timer.best(name, "loop")
        print(f"  {name:12} {speed:10,.0f} tokens/s   {ratio:.2f}x the baseline's step time")
    return ratios


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--implementations", nargs="+", choices=IMPLEMENTATIONS, default=["grouped_mm", "eager"])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    timer = Timer(time.process_time if args.threads == 1 else time.perf_counter)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {args.rounds} rounds")
    result: dict[str, Any] = {name: side_by_side(name, args, timer) for name in args.shapes}
    result["loop_overhead"] = overhead(args, timer)
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
