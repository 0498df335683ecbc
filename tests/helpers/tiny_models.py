"""Tiny models of real architectures with freshly trained tokenizers, saved in the layout of the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    GemmaConfig,
    GemmaForCausalLM,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3ForSequenceClassification,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
)

from mnemorank.artifact.hop_features import ROLES
from mnemorank.artifact.manifest import Manifest, write_manifest
from mnemorank.scorers.torch.split import SplitClassifier, SplitConfig
from tests.conftest import WORDS, build_tokenizer

QUERY = "Where does Ruby work now?"
TEXTS = [
    "Ruby works at Aurora Labs now.",
    "The cat sat on the mat because it was tired.",
    "Before that, Ruby worked at Zenith in Berlin, and moved to Lisbon in March 2024 for a new database team.",
    "yes",
    "A trip to Lisbon | When: April 2025 | Involving: Ruby, Ana",
    "Übergrößenträger 🙂 你好",
]
CORPUS = [
    *TEXTS,
    QUERY,
    " ".join(WORDS),
    "yes no Yes No 0 1 yes no Yes No 0 1\nyes\nno\nYes\nNo\n",
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n<Query>: a\n<Document>: b",
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the "
    'answer can only be "yes" or "no". system user assistant query: document: Relevance:',
] * 4


def _save(tokenizer: Tokenizer, folder: Path, **special: Any) -> PreTrainedTokenizerFast:
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    wrapped.save_pretrained(folder)
    return wrapped


def _write(network: Any, folder: Path, seed: int = 7) -> Path:
    """Save the network with large random weights, so that scores differ by more than the tolerance of the tests."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.25)
            elif "norm" not in name.lower():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    network.save_pretrained(folder)
    return folder


def split_encoder(folder: Path) -> Path:
    """A split encoder of three layers, one of which reads query and memory apart, with a manifest."""
    tokenizer = build_tokenizer()
    inputs = ["input_ids", "attention_mask", "token_type_ids"]
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    _save(tokenizer, folder, model_input_names=inputs, **special)
    config = SplitConfig(
        apart_layers=1,
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=128,
        num_labels=1,
    )
    network = SplitClassifier(config)
    generator = torch.Generator().manual_seed(3)
    for name, parameter in network.named_parameters():
        if "norm" in name.lower():  # as after training; equal ones would share a tensor in the graph
            parameter.data += torch.randn(parameter.shape, generator=generator) * 0.02
    _write(network, folder)
    manifest = Manifest(name="tiny-split", family="torch", format="hindsight-2", max_length=64)
    write_manifest(folder, manifest)
    return folder


def _template(single: str, pair: str, tokenizer: Tokenizer, *names: str) -> Any:
    return processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[(name, tokenizer.token_to_id(name)) for name in names]
    )


def bert(folder: Path, labels: int = 1) -> Path:
    tokenizer = _save(
        build_tokenizer(), folder, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )  # fmt: skip
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=128, num_labels=labels,
    )  # fmt: skip
    return _write(BertForSequenceClassification(config), folder)


def _unigram(special: list[str], unknown: str) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=special, unk_token=unknown, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def deberta(folder: Path) -> Path:
    """Save a DeBERTa-v3 with the feature tokens of multi-hop-rag-reranker in its tokenizer."""
    tokenizer = _unigram(["[PAD]", "[CLS]", "[SEP]", "[UNK]"], "[UNK]")
    tokenizer.post_processor = _template("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", tokenizer, "[CLS]", "[SEP]")
    features = [
        *(f"[HOP:{hop}]" for hop in (0, 1, 2)),
        *(f"[ROLE:{role}]" for role in ROLES),
        "[CAUSAL]",
        "[REASONING]",
    ]
    tokenizer.add_tokens([AddedToken(feature, normalized=False) for feature in features])
    saved = _save(tokenizer, folder, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]")
    config = DebertaV2Config(
        vocab_size=len(saved), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=128, type_vocab_size=0, relative_attention=True, position_buckets=16,
        pos_att_type=["p2c", "c2p"], share_att_key=True, norm_rel_ebd="layer_norm", position_biased_input=False,
        num_labels=1, pad_token_id=0,
    )  # fmt: skip
    return _write(DebertaV2ForSequenceClassification(config), folder)


def xlm_r(folder: Path) -> Path:
    tokenizer = _unigram(["<s>", "<pad>", "</s>", "<unk>"], "<unk>")
    tokenizer.post_processor = _template("<s> $A </s>", "<s> $A </s> </s> $B </s>", tokenizer, "<s>", "</s>")
    saved = _save(
        tokenizer, folder, unk_token="<unk>", pad_token="<pad>", cls_token="<s>", sep_token="</s>", bos_token="<s>",
        eos_token="</s>",
    )  # fmt: skip
    config = XLMRobertaConfig(
        vocab_size=len(saved), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=130, type_vocab_size=1, num_labels=1, pad_token_id=1, bos_token_id=0, eos_token_id=2,
    )  # fmt: skip
    return _write(XLMRobertaForSequenceClassification(config), folder)


def _byte_level(special: list[str], corpus: list[str] = CORPUS) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def modern_bert(folder: Path) -> Path:
    tokenizer = _byte_level(["[UNK]", "[CLS]", "[SEP]", "[PAD]"])
    tokenizer.post_processor = _template("[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", tokenizer, "[CLS]", "[SEP]")
    saved = _save(tokenizer, folder, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]")
    config = ModernBertConfig(
        vocab_size=len(saved), hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=128, local_attention=16, num_labels=1, pad_token_id=3, cls_token_id=1, sep_token_id=2,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return _write(ModernBertForSequenceClassification(config), folder)


QWEN_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]


def _qwen_config(vocabulary: int, **more: Any) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=vocabulary, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, intermediate_size=64, max_position_embeddings=512, **more,
    )  # fmt: skip


def qwen_causal(folder: Path, answers: bool = True) -> Path:
    """:param answers: add tokens for yes and no."""
    tokenizer = _byte_level(QWEN_SPECIAL, CORPUS if answers else ["the cat"])
    saved = _save(tokenizer, folder, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=512)
    return _write(Qwen3ForCausalLM(_qwen_config(len(saved), tie_word_embeddings=True)), folder)


def qwen_classifier(folder: Path, pad_token: str | None = "<|endoftext|>") -> Path:
    tokenizer = _byte_level(QWEN_SPECIAL)
    special = {"eos_token": "<|im_end|>", **({"pad_token": pad_token} if pad_token else {})}
    saved = _save(tokenizer, folder, **special)
    config = _qwen_config(len(saved), num_labels=1, pad_token_id=saved.pad_token_id)
    return _write(Qwen3ForSequenceClassification(config), folder)


def gemma_causal(folder: Path) -> Path:
    tokenizer = _byte_level(["<pad>", "<eos>", "<bos>", "<unk>"])
    tokenizer.post_processor = _template("<bos> $A", "<bos> $A <bos>:1 $B:1", tokenizer, "<bos>")
    saved = _save(
        tokenizer, folder, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>", unk_token="<unk>",
        model_max_length=512,
    )  # fmt: skip
    config = GemmaConfig(
        vocab_size=len(saved), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=1,
        head_dim=8, intermediate_size=64, max_position_embeddings=512, pad_token_id=0, eos_token_id=1, bos_token_id=2,
    )  # fmt: skip
    return _write(GemmaForCausalLM(config), folder)


def adapter(folder: Path, base: Path, seed: int) -> Path:
    """Save a LoRA adapter with a trained head, as LycheeMem's training does."""
    from peft import LoraConfig, TaskType, get_peft_model

    network = Qwen3ForSequenceClassification.from_pretrained(base, num_labels=1)
    settings = LoraConfig(
        task_type=TaskType.SEQ_CLS, r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], modules_to_save=["score"]
    )
    adapted = get_peft_model(network, settings)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    adapted.save_pretrained(folder)
    return folder
