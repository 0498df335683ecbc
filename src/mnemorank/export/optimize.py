"""Fusion for architectures whose layers we do not write ourselves: ONNX Runtime's own transformer optimizer."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from mnemorank.export.graph import complete_inputs

_KINDS = {"deberta-v2": "bert", "mpnet": "bert", "distilbert": "bert"}


def fuse(path: Path, config: Any) -> dict[str, int]:
    """Fuse what the optimizer recognises, in place; returns how many of each fused node it made.

    :param config: the model's Hugging Face configuration.
    """
    from onnxruntime.transformers.fusion_options import FusionOptions
    from onnxruntime.transformers.optimizer import optimize_model

    kind = _KINDS.get(config.model_type)
    if kind is None:
        return {}
    options = FusionOptions(kind)
    # Its pattern loses the attention mask in graphs of transformers 5.
    options.enable_embed_layer_norm = False
    options.enable_skip_layer_norm = False
    logging.getLogger("onnxruntime.transformers").setLevel(logging.ERROR)
    optimizer = optimize_model(
        str(path),
        model_type=kind,
        num_heads=config.num_attention_heads,
        hidden_size=config.hidden_size,
        optimization_options=options,
        opt_level=0,
    )
    optimizer.save_model_to_file(str(path))
    complete_inputs(path)
    return {name: count for name, count in optimizer.get_fused_operator_statistics().items() if count}
