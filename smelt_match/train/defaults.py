"""What the paper does not print: every default of training, each with its source.

All arms of a comparison take the same values. The paper names AdamW and warmup-stable-decay with cosine branches
(arXiv 2609.01343v3, Sec. 3.1), and prints neither a rate nor any of the figures below.
"""

from __future__ import annotations

from fractions import Fraction

from smelt_match.budget.conventions import convention
from smelt_match.budget.count import context_of
from smelt_match.budget.ledger import ledger
from smelt_match.spec.model import ModelSpec

# Betas, epsilon, decay and clipping: OLMoE (arXiv 2409.02060, App. B, Table 10). Unlike there, the router has no z-loss
# (0.001 in OLMoE), since the paper names none.
BETAS = (0.9, 0.95)
EPSILON = 1e-8
WEIGHT_DECAY = 0.1
CLIP_NORM = 1.0
# The share of the trunk that warms up: 2,000 of the paper's 196,075 steps, the warmup of Llama (arXiv 2302.13971,
# Sec. 2.3) and DeepSeek-V3 (arXiv 2412.19437, Sec. 4.2).
WARMUP = Fraction(2_000, 196_075)
# The coefficient of the load-balancing loss: OLMoE (App. B, Table 10) and Switch (arXiv 2101.03961, Sec. 2.2).
BALANCE_COEFFICIENT = 0.01
# The step of the balancing bias, where that is chosen instead: DeepSeek-V3, for its first 14.3T tokens (Sec. 4.2).
BIAS_RATE = 1e-3
# Tokens of a context in the paper; a smaller one serves models that are trained on few tokens.
PAPER_CONTEXT = 4_096
SMALL_CONTEXT = 512
SMALL_MODEL = 10**7  # parameters by FLOPs: nano has 3.5 million, 100m thirty times as many
# The least that the Step Law was measured at: active parameters and tokens of its mixtures of experts; its dense models
# begin at 2.1e8 and 4e9 (the grids on https://step-law.github.io).
LAW_PARAMETERS = 187_973_632
LAW_TOKENS = 2 * 10**9
# Tokens of a micro-batch, at most: one context of the paper's, or as many tokens in shorter ones.
MICRO_TOKENS = 8_192


def active_parameters(spec: ModelSpec) -> int:
    """N: training FLOPs per token, convention ``paper``, over 6. Matched models share it up to their deviation."""
    return int(ledger(spec, convention("paper"), context_of(spec)).budget.flops // 6)


def peak_learning_rate(spec: ModelSpec, tokens: int) -> float:
    """1.79 · N^−0.713 · D^0.307, to two digits (Step Law, arXiv 2503.04715, for dense models and experts alike).

    The least N and D that the law was measured at stand in for smaller ones, so that a small run gets 1.6e-3, and not
    what the powers would extrapolate to. Measured for nano_s85 over 100,000 bytes of the sample in steps of 1,024 with
    one seed, the validation loss was 2.921 nats at 8e-4, 2.832 at 1.6e-3 and 2.978 at 3.2e-3.

    Args:
        spec: N is `active_parameters` of it.
        tokens: D, the trunk's. The law was measured up to 1e11 tokens; beyond, it is an extrapolation.
    """
    N, D = max(active_parameters(spec), LAW_PARAMETERS), max(tokens, LAW_TOKENS)
    return float(f"{1.79 * N**-0.713 * D**0.307:.1e}")


def batch_rows(tokens: int, context: int) -> int:
    """Contexts of a step: 0.58 · D^0.571 tokens (Step Law, arXiv 2503.04715), in the nearest power of two of rows.

    For the paper's 205 billion tokens in contexts of 4,096 it gives 512, where the paper took 256.
    """
    wanted = max(1.0, 0.58 * tokens**0.571 / context)
    power = int(wanted).bit_length() - 1
    return 1 << (power if wanted < 2**power * 2**0.5 else power + 1)


def context_for(spec: ModelSpec) -> int:
    """Tokens of a context."""
    return SMALL_CONTEXT if active_parameters(spec) < SMALL_MODEL else PAPER_CONTEXT


def warmup_steps(steps: int) -> int:
    """Steps of warmup: the share `WARMUP` of a trunk, and at least 10 or a tenth of it, so that Adam's moments settle.

    A trunk of a few hundred steps would otherwise warm up in two or three.
    """
    return min(steps, max(round(steps * WARMUP), min(100, steps // 10), 1))


def micro_rows(rows: int, context: int) -> int:
    """Rows of a micro-batch: the largest divisor of the batch that holds at most `MICRO_TOKENS` tokens."""
    return max(
        part for part in range(1, rows + 1) if rows % part == 0 and (part * context <= MICRO_TOKENS or part == 1)
    )


def validation_tokens(tokens: int) -> int:
    """The most of each source that a validation reads: a fiftieth of the trunk, so that seven of them cost little.

    Arms of a comparison read the same tokens, whose choice therefore does not blur their differences.
    """
    return max(4_096, tokens // 50)
