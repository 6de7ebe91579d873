"""The parameters that transformers builds from a config, on the meta device: no memory, no weights, no network."""

from __future__ import annotations

import os
import textwrap
import warnings
from pathlib import Path
from typing import Any

from smelt_match.errors import BadInput, MissingExtra
from smelt_match.spec.huggingface.reader import config_at


def built_parameters(path: Path) -> int:
    """Count the parameters of transformers' own model of a config, tied weights once and buffers not at all.

    Args:
        path: A ``config.json``, or a folder with one. Of a multimodal config, the text model is built.

    Raises:
        BadInput: The path has no config, or transformers cannot build a causal language model from it.
        MissingExtra: torch or transformers is not installed.
    """
    model = built(path)
    return sum(parameter.numel() for parameter in model.parameters())


def built(path: Path, device: str = "meta", **changes: Any) -> Any:
    """transformers' causal language model of a config, with some of its fields changed."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no kernel is looked for on the Hub
    try:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError as error:
        raise MissingExtra(
            f"building a model with transformers: {error.name or 'transformers'} is not installed",
            "pip install 'smelt-match[hf]'",
        ) from error
    from_config: Any = AutoModelForCausalLM.from_config  # untyped
    found = config_at(path)
    if found is None:
        raise BadInput(f"{path}: not a Hugging Face config")
    where, document = found
    document.pop("auto_map", None)
    try:
        config = AutoConfig.for_model(document.pop("model_type", ""), **document).get_text_config()
        for name, value in changes.items():
            setattr(config, name, value)
        with torch.device(device), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # transformers' own
            return from_config(config)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        # Where it has no class, transformers names all it has.
        reason = textwrap.shorten(str(error).partition(". Should contain")[0], 160, placeholder=" …")
        raise BadInput(f"{where}: transformers builds no causal language model from it: {reason}") from error
