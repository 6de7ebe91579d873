"""Speed of our model and of transformers' on the same shapes, side by side in one run, as ratios.

python benchmarks/model.py
python benchmarks/model.py --rounds 3 --layers 1    # a quick look
python benchmarks/model.py --threads 1              # processor time of one thread: for a machine that is busy
python benchmarks/model.py --commands               # only the two commands
python benchmarks/model.py --json model.json

An unlooped stack of mixture-of-experts layers (8 of 64 experts) against `Qwen3MoeForCausalLM`, with every experts
implementation that transformers runs here; the fastest of them is what ours is measured against. Both sides compute
the same function from the same weights, which is checked first, and both compute the balancing loss in the backward
pass. Rounds take turns, so that a busy machine slows both; the best round of each counts.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn import functional as F
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from smelt_match.model.loop import LoopedTransformer
from smelt_match.spec.model import ModelSpec

GOAL, AIM = 1.0, 1.5
IMPLEMENTATIONS = ("grouped_mm", "batched_mm", "eager")
COEFFICIENT = 0.01

DEEPSEEK_V2 = {
    "model_type": "deepseek_v2", "first_k_dense_replace": 1, "hidden_size": 5120, "intermediate_size": 12288,
    "moe_intermediate_size": 1536, "n_routed_experts": 160, "num_attention_heads": 128, "num_experts_per_tok": 6,
    "num_hidden_layers": 60, "q_lora_rank": 1536, "vocab_size": 102400,
}  # fmt: skip
QWEN3_30B_A3B = {
    "model_type": "qwen3_moe", "head_dim": 128, "hidden_size": 2048, "intermediate_size": 6144,
    "moe_intermediate_size": 768, "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 48, "norm_topk_prob": True, "vocab_size": 151936,
}  # fmt: skip
COMMANDS: list[tuple[str, dict[str, Any], list[str], float, float]] = [  # wanted: seconds, MB
    ("count, 60 layers", DEEPSEEK_V2, [], 0.5, float("inf")),
    ("count --measure, Qwen3-30B-A3B, 4,096 tokens", QWEN3_30B_A3B, ["--measure", "--context", "4096"], 10, 1000),
]


def spec_of(args: argparse.Namespace) -> ModelSpec:
    """Our side."""
    return ModelSpec(
        name="bench", hidden_size=args.hidden, num_layers=args.layers, num_experts=64, experts_per_token=8,
        expert_intermediate_size=args.hidden // 2, num_attention_heads=8, num_key_value_heads=args.kv_heads,
        head_dim=args.hidden // 8, qk_norm="head", vocab_size=args.vocab,
    )  # fmt: skip


def theirs(spec: ModelSpec, ours: LoopedTransformer, implementation: str) -> Qwen3MoeForCausalLM:
    """transformers' model with our weights."""
    config = Qwen3MoeConfig(
        hidden_size=spec.hidden_size, num_hidden_layers=spec.num_layers, num_experts=spec.num_experts,
        num_experts_per_tok=spec.experts_per_token, moe_intermediate_size=spec.expert_intermediate_size,
        num_attention_heads=spec.num_attention_heads, num_key_value_heads=spec.num_key_value_heads,
        head_dim=spec.head_dim, vocab_size=ours.vocab_size, rms_norm_eps=spec.rms_norm_eps, norm_topk_prob=True,
        tie_word_embeddings=False, router_aux_loss_coef=COEFFICIENT, max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": spec.rope_theta}, attn_implementation="sdpa",
        experts_implementation=implementation,
    )  # fmt: skip
    model = Qwen3MoeForCausalLM(config)
    names = {
        "embedding": "model.embed_tokens", "head": "lm_head", "final_norm": "model.norm", "blocks": "model.layers",
        "attention_norm": "input_layernorm", "feed_forward_norm": "post_attention_layernorm", "query": "q_proj",
        "key": "k_proj", "value": "v_proj", "output": "o_proj", "query_norm": "q_norm", "key_norm": "k_norm",
        "attention": "self_attn", "feed_forward": "mlp", "router": "gate", "up": "gate_up_proj", "down": "down_proj",
    }  # fmt: skip
    weights = {}
    for name, tensor in ours.state_dict().items():
        stored = tensor.transpose(1, 2) if ".experts." in name else tensor
        weights[".".join(names.get(part, part) for part in name.split("."))] = stored
    model.load_state_dict(weights)
    return model


def loss_of(logits_BSV: Tensor, tokens_BS: Tensor) -> Tensor:
    """Next-token cross-entropy."""
    return F.cross_entropy(logits_BSV[:, :-1].flatten(0, 1), tokens_BS[:, 1:].flatten())


def our_step(model: LoopedTransformer, tokens_BS: Tensor) -> Tensor:
    """The loss, balancing included."""
    out = model(tokens_BS)
    return loss_of(out.logits_BSV, tokens_BS) + COEFFICIENT * out.aux_loss


def their_step(model: Any, tokens_BS: Tensor) -> Tensor:
    """The loss, balancing included; transformers sums over a token's experts where we take shares."""
    out = model(tokens_BS, use_cache=False, output_router_logits=True)
    return loss_of(out.logits, tokens_BS) + COEFFICIENT / model.config.num_experts_per_tok * out.aux_loss


class Timer:
    """Best and median seconds of named steps that take turns."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.seconds: dict[tuple[str, str], list[float]] = {}

    def __call__(self, name: str, what: str, step: Callable[[], object]) -> None:
        start = self.clock()
        step()
        self.seconds.setdefault((name, what), []).append(self.clock() - start)

    def best(self, name: str, what: str) -> float:
        return min(self.seconds[name, what][1:] or self.seconds[name, what])  # the first warms up

    def median(self, name: str, what: str) -> float:
        return statistics.median(self.seconds[name, what][1:] or self.seconds[name, what])


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Time everything; print a table; return it as data."""
    torch.manual_seed(0)
    if args.threads:
        torch.set_num_threads(args.threads)
    spec = spec_of(args)
    ours = LoopedTransformer(spec)
    sides: dict[str, Any] = {"ours": ours} | {name: theirs(spec, ours, name) for name in args.implementations}
    tokens = torch.randint(0, ours.vocab_size, (args.rows, args.tokens))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(f"date {datetime.date.today()}, python {platform.python_version()}, torch {torch.__version__}, "
          f"transformers {transformers.__version__}, {cores} cores, {torch.get_num_threads()} threads")  # fmt: skip
    print(f"{spec.num_layers} layers, H {spec.hidden_size}, I {spec.expert_intermediate_size}, 8 of 64 experts, "
          f"{spec.num_attention_heads} heads ({spec.num_key_value_heads} KV), V {ours.vocab_size}, "
          f"{args.tokens} tokens x {args.rows}, float32, {args.rounds} rounds")  # fmt: skip

    with torch.no_grad():
        reference = ours(tokens).logits_BSV
        for name in args.implementations:
            torch.testing.assert_close(sides[name](tokens, use_cache=False).logits, reference, rtol=1e-3, atol=1e-4)
        expected = our_step(ours, tokens).item()
    timer = Timer(time.process_time if args.threads == 1 else time.perf_counter)
    for _ in range(args.rounds + 1):
        for name, model in sides.items():
            step = our_step if name == "ours" else their_step
            with torch.no_grad():
                call = (lambda m: m(tokens)) if name == "ours" else (lambda m: m(tokens, use_cache=False))
                timer(name, "forward", lambda model=model, call=call: call(model))

            def train(model: Any = model, step: Any = step) -> Tensor:
                model.zero_grad(set_to_none=True)
                loss = step(model, tokens)
                loss.backward()
                assert abs(loss.item() - expected) < 5e-2 * abs(expected)
                return loss

            timer(name, "forward + backward", train)
            model.zero_grad(set_to_none=True)
    rows, result = tokens.numel(), {}
    print(f"\n{'':20} {'best, tokens/s':>16} {'median':>10}   ours is faster by (best, median)")
    for what in ("forward", "forward + backward"):
        for name in sides:
            best, median = timer.best(name, what), timer.median(name, what)
            ratios = best / timer.best("ours", what), median / timer.median("ours", what)
            speeds = f"{rows / best:16,.0f} {rows / median:10,.0f}"
            print(f"{what:20} {speeds}   {name:12} {ratios[0]:.2f}x {ratios[1]:.2f}x")
            result[f"{what}, {name}"] = {"tokens_per_second": rows / best, "median_tokens_per_second": rows / median,
                                         "ratio": ratios[0], "ratio_median": ratios[1]}  # fmt: skip
    print()
    for what in ("forward", "forward + backward"):
        fastest = min(args.implementations, key=lambda name, what=what: timer.best(name, what))
        ratio = timer.best(fastest, what) / timer.best("ours", what)
        said = "aim met" if ratio >= AIM else "goal met, aim missed" if ratio >= GOAL else "goal missed"
        print(f"{what}: {ratio:.2f}x of transformers' fastest ({fastest}); goal {GOAL}x, aim {AIM}x: {said}")
        result[f"{what}, against fastest"] = {"implementation": fastest, "ratio": ratio}
    return result


def commands() -> dict[str, Any]:
    """Run the commands; print what they took; return it as data."""
    result = {}
    print(f"\n{'command':46} {'wall s':>8} {'processor s':>12} {'peak MB':>8}   load {os.getloadavg()[0]:.1f}")
    for name, config, options, seconds, megabytes in COMMANDS:
        wall, processor, peak = min(_command(config, options) for _ in range(3))
        met = "met" if wall < seconds and peak < megabytes else "missed"
        goal = f"under {seconds} s" + (f" and {megabytes:,.0f} MB" if megabytes < float("inf") else "")
        print(f"{name:46} {wall:8.2f} {processor:12.2f} {peak:8.0f}   {goal}: {met}")
        result[name] = {"wall_seconds": wall, "processor_seconds": processor, "peak_megabytes": peak}
    return result


# A process of its own, since the peak memory of a command begins with that of the process which starts it.
TIMED = """
import json, resource, subprocess, sys, time
start = time.perf_counter()
subprocess.run([sys.executable, "-m", "smelt_match", *sys.argv[1:]], stdout=subprocess.DEVNULL, check=True)
wall, used = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([wall, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e6]))  # Linux counts kibibytes
"""


def _command(config: dict[str, Any], options: list[str]) -> tuple[float, float, float]:
    """Wall seconds, processor seconds and peak megabytes of one run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config))
        args = [sys.executable, "-c", TIMED, "count", str(path), *options]
        ran = subprocess.run(args, stdout=subprocess.PIPE, text=True, check=True)
    wall, processor, peak = json.loads(ran.stdout)
    return wall, processor, peak


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--vocab", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, help="of torch; with 1, processor time is measured instead of wall time")
    parser.add_argument("--implementations", nargs="+", choices=IMPLEMENTATIONS, default=["grouped_mm", "eager"])
    parser.add_argument("--commands", action="store_true", help="time the two commands only")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result = {} if args.commands else run(args)
    result |= commands()
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
