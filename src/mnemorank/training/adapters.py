"""LoRA: small trained matrices beside the frozen base, and the head, which is trained whole and saved with them."""

from __future__ import annotations

from typing import Any

from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from torch import nn

from mnemorank.errors import InputError
from mnemorank.training.base_model import Base
from mnemorank.training.recipe import Lora

HEADS = ("score", "classifier", "classification_head", "lm_head")


def add_lora(base: Base, lora: Lora, kind: str) -> PeftModel:
    """Put adapters on the base.

    The head and whatever else the base did not bring along (a BERT pooler) would be drawn anew when the adapter is
    loaded on the base again; as `modules_to_save` they are trained and lie in the adapter.
    """
    whole = _to_save(base, kind)
    config = LoraConfig(
        task_type=TaskType.CAUSAL_LM if kind == "yes-no" else TaskType.SEQ_CLS,
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=_targets(base.model, lora.targets, whole),
        modules_to_save=whole or None,
    )
    return get_peft_model(base.model, config)


def merge(model: PeftModel) -> Any:
    """The base with the adapters folded in: a plain Hugging Face model."""
    return model.merge_and_unload()


def _to_save(base: Base, kind: str) -> list[str]:
    if kind == "yes-no":
        return []
    names = {name for name, _ in base.model.named_children() if name in HEADS}
    names |= {_module_of(parameter) for parameter in base.fresh}
    if not names:
        raise InputError(f"{base.path}: no classification head found (one of {', '.join(HEADS)})", field="model.base")
    return sorted(names)


def _module_of(parameter: str) -> str:
    """The last part but one or more of a parameter's name that names a module: `bert.pooler.dense.weight` → pooler."""
    parts = parameter.split(".")[:-1]
    return next((part for part in parts if part in ("pooler", *HEADS)), parts[-1])


def _targets(model: nn.Module, wanted: tuple[str, ...], whole: list[str]) -> list[str]:
    linear = {
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and not set(name.split(".")) & {*whole, *HEADS}
    }
    if not wanted:
        return sorted(linear)
    chosen = sorted(name for name in linear if name.split(".")[-1] in wanted)
    missing = [target for target in wanted if not any(name.split(".")[-1] == target for name in linear)]
    if missing:
        there = ", ".join(sorted({name.split(".")[-1] for name in linear}))
        raise InputError(f"the base has no linear layer {missing[0]!r}; it has: {there}", field="lora.targets")
    return chosen
