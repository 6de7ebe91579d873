"""One prepared run for the day a GPU is at hand: what only a GPU can tell, in under six minutes, as one JSON.

python benchmarks/gpu.py                            # writes $OUT/gpu.json, or gpu.json here
python benchmarks/gpu.py results.json
python benchmarks/gpu.py --cpu-rehearsal            # every section at a tiny shape on a CPU: does the code run?

The models are the paper's 200m_s85 pair (baseline and published SMELT) and our uniform and split matches. Each section
has its own budget, keeps its own errors, and is written down as soon as it ends; what a section does not use, later
ones may. Without a GPU it says so and ends with 3, and leaves no file.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gc
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from gpu_checks import grouped_gemm, one_graph, packed_masks
from gpu_models import REHEARSAL, Bench, Sizes, with_fields
from gpu_train import check_pair, failures, roomy
from torch import Tensor

from smelt_match.budget.context import Context
from smelt_match.budget.conventions import CONVENTIONS
from smelt_match.budget.count import control_of, count
from smelt_match.errors import BadInput
from smelt_match.files import check_writable, write_atomic
from smelt_match.match.fastest import Ratio
from smelt_match.measure.step_time import Side, device_name, half
from smelt_match.model.generate import generate
from smelt_match.model.loop import LoopedTransformer
from smelt_match.spec.model import ModelSpec
from smelt_match.train.peaks import peak_flops

TOTAL = 350.0  # seconds, start and end included


class OutOfTime(BaseException):
    """A section's budget is used up; no `except Exception` on the way, such as a compiler's, hides it."""


def ratio_json(seconds: list[float], reference: list[float]) -> dict[str, float]:
    """The median ratio of rounds in turn, with their middle half."""
    ratio = Ratio.of(seconds, reference)
    return {"median": ratio.value, "quartile_low": ratio.low, "quartile_high": ratio.high}


def step_time(bench: Bench, compiled: bool = False) -> dict[str, Any]:
    """Training steps of all models in turn, embedding, head and loss included, the optimizer not."""
    tokens_BS, sizes = bench.batch(), bench.sizes
    specs = dict(list(bench.specs.items())[:2]) if compiled else bench.specs
    calls: dict[str, Callable[[], float]] = {}
    for name, spec in specs.items():
        model = bench.model(spec)
        if compiled:  # block by block: those of one shape share what was compiled
            torch.compiler.reset()
            for block in model.blocks:
                block.compile(backend=sizes.compiler)
        calls[name] = lambda model=model: step_seconds(bench, model, tokens_BS)
    seconds = bench.in_turn(calls, sizes.rounds)
    found = {}
    for name, spec in specs.items():
        median = statistics.median(seconds[name])
        speed = tokens_BS.numel() / median
        found[name] = {
            "config": spec.config(), "layout": str(spec.visits), "seconds_median": median, "seconds": seconds[name],
            "tokens_per_second": speed, "step_ratio_to_baseline": ratio_json(seconds[name], seconds["baseline"]),
            "mfu": utilisation(bench, spec, speed),
        }  # fmt: skip
    return {"rows": sizes.rows, "tokens_per_row": sizes.tokens, "vocab_size": sizes.vocabulary,
            "dtype": "bfloat16 autocast" if half(bench.device) else "float32", "compiled": compiled,
            "models": found}  # fmt: skip


def step_seconds(bench: Bench, model: Any, tokens_BS: Tensor) -> float:
    """Seconds of one step; its gradients are dropped afterwards."""
    seconds = bench.timed(lambda: bench.train(model, tokens_BS))
    model.zero_grad(set_to_none=True)
    return seconds


def utilisation(bench: Bench, spec: ModelSpec, tokens_per_second: float) -> dict[str, Any]:
    """Counted training FLOPs a second under every convention, and as a share of the device's peak."""
    peak = peak_flops(bench.device, "bfloat16")
    context, found = Context.causal(bench.sizes.tokens), {}
    for name, rule in CONVENTIONS.items():
        flops = count(spec, rule, context, control_of(spec)).budget.flops
        achieved = float(flops) * tokens_per_second
        found[name] = {"flops_train_per_token": round(flops), "flops_per_second": achieved,
                       "mfu": achieved / peak if peak else None}  # fmt: skip
    return found


def sweep(bench: Bench, dimension: str, values: tuple[int, ...]) -> dict[str, Any]:
    """One block's forward and backward pass at each value of a dimension, the others as in the paper's SMELT model."""
    base = bench.specs.get("published SMELT", bench.specs["uniform"])
    shape = (bench.sizes.rows, bench.sizes.tokens)
    specs = {value: with_fields(base, layout="none", **{dimension: value}) for value in values}
    sides = {str(value): Side(spec, bench.device, shape) for value, spec in specs.items()}
    seconds = bench.in_turn({name: side.seconds for name, side in sides.items()}, bench.sizes.rounds)
    reference = str(values[-1])
    rows = {}
    for value, spec in specs.items():
        name = str(value)
        flops = count(spec, CONVENTIONS["paper"], Context.causal(bench.sizes.tokens), control_of(spec)).budget.flops
        share = statistics.median(seconds[name]) / statistics.median(seconds[reference])
        rows[name] = {
            "seconds_per_block": statistics.median(seconds[name]) / len(spec.visits.visits),
            "ratio_to_last": ratio_json(seconds[name], seconds[reference]),
            "flops_train_per_token": round(flops), "relative_cost_per_flop": share,
        }  # fmt: skip
    last = rows[reference]["flops_train_per_token"]
    for row in rows.values():
        row["relative_cost_per_flop"] *= last / row["flops_train_per_token"]
    return {
        "dimension": dimension,
        "convention": "paper",
        "reference": reference,
        "config": base.config(),
        "values": rows,
    }


def peak_memory(bench: Bench) -> dict[str, Any]:
    """Bytes at the peak of a step with AdamW, each model by itself; with and without activation checkpointing."""
    tokens_BS, found = bench.batch(), {}
    cuda = bench.device.type == "cuda"
    for name, spec in bench.specs.items():
        for checkpointed in (False, True):
            collect()
            model = bench.model(spec)
            model.checkpoint = checkpointed
            optimizer = torch.optim.AdamW(model.parameters(), fused=True)
            for _ in range(2):  # the state of the optimizer comes with its first step
                if cuda:
                    torch.cuda.reset_peak_memory_stats()
                bench.train(model, tokens_BS)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            key = f"{name}, checkpointed" if checkpointed else name
            stored = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
            peak = torch.cuda.max_memory_allocated() if cuda else None
            found[key] = {"bytes_peak": peak, "bytes_weights": stored}
            del model, optimizer
    return found


def decoding(bench: Bench) -> dict[str, Any]:
    """Tokens a second of greedy decoding with a KV cache, weights in bf16 on a GPU; reading the prompt included."""
    sizes, dtype = bench.sizes, torch.bfloat16 if half(bench.device) else torch.float32
    models = {name: bench.model(spec, dtype) for name, spec in bench.specs.items()}
    found: dict[str, Any] = {"prompt_tokens": sizes.prompt, "new_tokens": sizes.new_tokens, "batches": {}}
    for batch in sizes.batches:
        prompt_BS = torch.randint(0, sizes.vocabulary, (batch, sizes.prompt), device=bench.device)

        def call(model: LoopedTransformer, prompt_BS: Tensor = prompt_BS) -> float:
            return bench.timed(lambda: generate(model, prompt_BS, sizes.new_tokens))

        seconds = bench.in_turn({name: lambda model=model: call(model) for name, model in models.items()}, 3)
        found["batches"][str(batch)] = {
            name: {
                "tokens_per_second": batch * sizes.new_tokens / statistics.median(seconds[name]),
                "time_ratio_to_baseline": ratio_json(seconds[name], seconds["baseline"]),
                "kv_bytes_per_token": model.new_cache(1, 1).elements_per_token * dtype.itemsize,
            }
            for name, model in models.items()
        }
    return found


def training(bench: Bench) -> dict[str, Any]:
    """The pair trained for 100 steps: loss, resume and compile. What is checked when time ends is kept."""
    tiny = [with_fields(bench.specs[name], vocab_size=None) for name in ("baseline", "uniform")]
    specs = tiny if bench.sizes.training else None  # None: the pair
    found: dict[str, Any] = {}
    stopped, compile_ = None, torch.nn.Module.compile
    chosen = mock.patch.object(torch.nn.Module, "compile", lambda self: compile_(self, backend=bench.sizes.compiler))
    torch.compiler.reset()
    with chosen, tempfile.TemporaryDirectory(dir=roomy()) as name:
        try:
            check_pair(Path(name), device=bench.device.type, specs=specs, found=found, **bench.sizes.training)
        except OutOfTime as error:
            stopped = str(error)
    return {"arms": found, "failures": failures(found), "stopped": stopped}


def collect() -> None:
    """Free what the last section left behind."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


# (name, seconds, what): a row for each part of the result, in this order. Unused seconds pass on to later rows.
SECTIONS: tuple[tuple[str, float, Callable[[Bench], dict[str, Any]]], ...] = (
    ("step_time", 50, step_time),
    ("head_sizes", 20, lambda bench: sweep(bench, "head_dim", bench.sizes.head_dims)),
    ("expert_widths", 20, lambda bench: sweep(bench, "expert_intermediate_size", bench.sizes.expert_widths)),
    ("peak_memory", 30, peak_memory),
    ("decoding", 30, decoding),
    ("flex_attention_packed_masks", 20, packed_masks),
    ("bf16_grouped_gemm", 5, grouped_gemm),
    ("compiled_without_graph_breaks", 30, one_graph),
    ("step_time_compiled", 45, lambda bench: step_time(bench, compiled=True)),
    ("training", 90, training),
)


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `OutOfTime` in what runs longer."""

    def ring(*_: Any) -> None:
        raise OutOfTime(f"stopped after its {seconds:.0f} seconds")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run(bench: Bench, path: Path, start: float, rehearsal: bool) -> dict[str, Any]:
    """Every section, written down one by one."""
    sections: dict[str, Any] = {name: {"error": "not reached"} for name, _, _ in SECTIONS}
    document = {
        "schema_version": 1, "date": datetime.date.today().isoformat(), "device": device_name(bench.device),
        "torch": torch.__version__, "cuda": torch.version.cuda, "rehearsal": rehearsal, "seconds": 0.0,
        "sections": sections,
    }  # fmt: skip

    def save() -> None:
        document["seconds"] = round(time.monotonic() - start, 1)
        write_atomic(path, json.dumps(document, indent=2) + "\n", force=True)

    def give_up() -> None:  # a call that cannot be interrupted: what is there is written already
        print(f"{path}: stopped after {TOTAL:.0f} seconds, sections so far are written", file=sys.stderr, flush=True)
        os._exit(1)

    watchdog = threading.Timer(TOTAL - (time.monotonic() - start), give_up)
    watchdog.daemon = True
    watchdog.start()
    for index, (name, _, section) in enumerate(SECTIONS):
        later = sum(seconds for _, seconds, _ in SECTIONS[index + 1 :])
        began = time.monotonic()
        try:
            with limited(TOTAL - 5 - (began - start) - later):
                sections[name] = {"result": section(bench)}
        except (Exception, OutOfTime) as error:  # one section's error is a result, too, and ends no other
            sections[name] = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:500]}
        sections[name]["seconds"] = round(time.monotonic() - began, 1)
        collect()
        save()
        print(f"{name}: {sections[name].get('error', 'done')}, {sections[name]['seconds']} s", file=sys.stderr)
    watchdog.cancel()
    return document


def main() -> int:
    """Read the options, run, and say where the result is."""
    start = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, nargs="?", default=Path(os.environ.get("OUT", ".")) / "gpu.json")
    parser.add_argument("--cpu-rehearsal", action="store_true", help="every section at a tiny shape on the CPU")
    args = parser.parse_args()
    if not args.cpu_rehearsal and not torch.cuda.is_available():
        print("no GPU found: nothing was run; --cpu-rehearsal tries every section on the CPU", file=sys.stderr)
        return 3
    try:
        check_writable(args.path, force=True)
    except BadInput as error:
        print(error.message, file=sys.stderr)
        return error.exit_code
    torch.manual_seed(0)
    if args.cpu_rehearsal:
        torch.set_num_threads(1)  # of shapes so small, threads only wait for each other
    device = torch.device("cpu" if args.cpu_rehearsal else "cuda")
    bench = Bench(device, REHEARSAL if args.cpu_rehearsal else Sizes())
    document = run(bench, args.path, start, args.cpu_rehearsal)
    print(f"wrote {args.path} after {document['seconds']} s", file=sys.stderr)
    return int(any("error" in section for section in document["sections"].values()))


if __name__ == "__main__":
    sys.exit(main())
