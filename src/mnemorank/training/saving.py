"""Writing the result: Hugging Face files, manifest and card, in place only when all of it is written."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from mnemorank.artifact.manifest import MANIFEST, Manifest, write_manifest
from mnemorank.training.adapters import merge
from mnemorank.training.base_model import Base
from mnemorank.training.checkpoints import whole_folder
from mnemorank.training.qat import SCALES, Grid
from mnemorank.training.quiet import quiet
from mnemorank.training.recipe import Recipe

CARD = "README.md"


def save_artifact(
    output: Path, model: Any, base: Base, recipe: Recipe, manifest: Manifest, card: str, grid: Grid | None
) -> Manifest:
    """Write the model folder.

    The files are written apart and moved to their place one by one, the manifest last: a folder with a manifest is
    whole, as its hashes show.
    """
    output.mkdir(parents=True, exist_ok=True)
    with whole_folder(output / "finished") as folder:
        if recipe.lora and recipe.lora.merge:
            model = merge(model)
        with quiet():
            model.save_pretrained(str(folder))
            base.tokenizer.save_pretrained(str(folder))
        if grid is not None:
            metadata = {"bits": str(grid.bits), "group_size": str(grid.group_size)}
            save_file(grid.scales, folder / SCALES, metadata=metadata)
        (folder / CARD).write_text(card, encoding="utf-8")
        files = [path for path in folder.rglob("*") if path.is_file()]
        for path in files:  # safetensors leaves its files to their owner alone, whatever the umask
            path.chmod((folder / CARD).stat().st_mode)
        names = sorted(str(path.relative_to(folder)) for path in files)
        written = write_manifest(folder, manifest, names)
    (output / MANIFEST).unlink(missing_ok=True)
    for path in sorted((output / "finished").iterdir(), key=lambda path: path.name == MANIFEST):
        target = output / path.name
        if target.is_dir():
            shutil.rmtree(target)
        os.replace(path, target)
    (output / "finished").rmdir()
    return written


def family(recipe: Recipe) -> str:
    """The scorer family of the result."""
    if recipe.model.kind == "yes-no":
        return "yes-no"
    return "lora" if recipe.lora and not recipe.lora.merge else "torch"


def draft_manifest(recipe: Recipe, base: Base) -> Manifest:
    """How the model is called, known before it is trained."""
    stated = recipe.model.base
    needs_base = recipe.lora is not None and not recipe.lora.merge
    if needs_base and not stated.startswith("hf:"):
        stated = str(base.path.resolve())
    return Manifest(
        name=recipe.name,
        version="1",
        family=family(recipe),
        format=recipe.model.format,
        template=recipe.model.template,
        instruction=recipe.model.instruction,
        score_kind="logit",
        max_length=recipe.model.max_length,
        windows=recipe.pipeline.windows,
        base=stated,
        quantization=f"qat-{recipe.qat.weights}" if recipe.qat else "none",
    )
