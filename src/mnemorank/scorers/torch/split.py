"""Split encoders: most of the work on a memory does not depend on the query.

The lowest layers read the query and the memory apart. On top of them, one stack of layers turns each text into an
embedding, and another reads query and memory together. The score is the logit of the second plus the weighted cosine
of the embeddings. So the states of a memory can be computed once and used for every query.

Two more heads share the layers: whether a newer memory replaces an older one, and whether a query asks about the past.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, AutoModelForSequenceClassification, BertConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.models.bert import modeling_bert

# Without types in transformers.
_bert: Any = modeling_bert

# Rows of the segment table: what is added to the states of a text before the joint layers.
QUERY, MEMORY, OLDER, NEWER, START = range(5)
_SEGMENTS = 5
_PAST_WIDTH = 64
# The weights of the cosine learn faster as small numbers.
_COSINE_UNIT = 10.0
_EMBEDDING_UNIT = 8.0
_LOWEST = -1e4  # fits into bfloat16 and float16


class SplitConfig(BertConfig):  # type: ignore[no-untyped-call]
    """A BERT configuration whose first `apart_layers` layers read query and memory apart."""

    model_type = "mnemorank-split"

    def __init__(self, apart_layers: int = 2, **settings: Any) -> None:
        super().__init__(**settings)
        self.apart_layers = apart_layers


class SplitClassifier(PreTrainedModel):
    """A split encoder as a classifier of pairs, `[CLS] query [SEP] memory [SEP]` with segment ids 0 and 1.

    A memory has no token of its own at position 0, so that its states are the same in a pair and alone.
    """

    config_class = SplitConfig
    base_model_prefix = "split"
    _supports_sdpa = True

    def __init__(self, config: SplitConfig) -> None:
        super().__init__(config)
        config._attn_implementation = "sdpa"
        width = config.hidden_size
        depth, apart = config.num_hidden_layers, config.apart_layers
        self.embeddings = _bert.BertEmbeddings(config)
        self.apart = _layers(config, range(apart))
        self.embedder = _layers(config, range(apart, depth))
        self.joint = _layers(config, range(apart, depth))
        self.segments = nn.Embedding(_SEGMENTS, width)
        self.dense = nn.Linear(width, width)
        self.classifier = nn.Linear(width, 1)
        self.replaced_dense = nn.Linear(width, width)
        self.replaced = nn.Linear(width, 1)
        self.past_dense = nn.Linear(width, _PAST_WIDTH)
        self.past = nn.Linear(_PAST_WIDTH, 1)
        self.cosine = nn.Parameter(torch.tensor([1.0, 0.5]))
        self.post_init()  # type: ignore[no-untyped-call]

    @classmethod
    def from_bert(cls, cross_encoder: Any, embedder: Any | None = None, apart_layers: int = 2) -> SplitClassifier:
        """Build a split encoder from BERT models of one shape.

        :param cross_encoder: a `BertForSequenceClassification`, which gives the lower and the joint layers.
        :param embedder: a `BertModel` that gives the upper layers of the embedding; the cross-encoder's by default.
        """
        config = SplitConfig(apart_layers=apart_layers, **cross_encoder.config.to_dict())
        model, bert = cls(config), cross_encoder.bert
        model.embeddings.load_state_dict(bert.embeddings.state_dict())
        for layers, source in ((model.apart, bert), (model.joint, bert), (model.embedder, embedder or bert)):
            for number, layer in layers.items():
                layer.load_state_dict(source.encoder.layer[int(number)].state_dict())
        for dense in (model.dense, model.replaced_dense):
            if bert.pooler is not None:
                dense.load_state_dict(bert.pooler.dense.state_dict())
        if cross_encoder.classifier.out_features == 1:
            model.classifier.load_state_dict(copy.deepcopy(cross_encoder.classifier.state_dict()))
        nn.init.zeros_(model.segments.weight)
        return model

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **_: Any,
    ) -> SequenceClassifierOutput:
        """Score pairs."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        query_length = (mask * (1 - types)).sum(1, keepdim=True)
        positions = positions - types * (query_length - 1)
        same_text = types[:, :, None] == types[:, None, :]
        apart_mask = additive(same_text & mask[:, None, :].bool())[:, None]
        states = run_layers(self.apart, self.embed(input_ids, positions.clamp(min=0)), apart_mask)
        embedded = run_layers(self.embedder, states, apart_mask)
        query, memory = (mean(embedded, mask * (types == kind)) for kind in (0, 1))
        cosine = functional.cosine_similarity(query.float(), memory.float(), dim=-1)
        joined = self.read_together(states, types, mask)
        logits = self.relevance(joined, cosine)
        return SequenceClassifierOutput(logits=logits[:, None])

    def encode(self, input_ids: Tensor, attention_mask: Tensor, first_position: int = 0) -> tuple[Tensor, Tensor]:
        """Return the states of texts, for the joint layers, and their embeddings, not normalized.

        :param first_position: 0 for queries, which begin with [CLS], 1 for memories.
        """
        positions = torch.arange(first_position, first_position + input_ids.shape[1], device=input_ids.device)[None]
        mask = additive(attention_mask.bool())[:, None, None]
        states = run_layers(self.apart, self.embed(input_ids, positions), mask)
        return states, mean(run_layers(self.embedder, states, mask), attention_mask)

    def embed(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """Return the word and position embeddings. Segments are added later, by `read_together`."""
        types = torch.zeros_like(input_ids)
        embedded: Tensor = self.embeddings(input_ids=input_ids, position_ids=positions, token_type_ids=types)
        return embedded

    def read_together(self, states: Tensor, segments: Tensor, attention_mask: Tensor) -> Tensor:
        """Run the joint layers over the states of two texts; return the state of the first token."""
        hidden = states + self.segments(segments).to(states.dtype)
        return run_layers(self.joint, hidden, additive(attention_mask.bool())[:, None, None])[:, 0]

    def relevance(self, joined: Tensor, cosine: Tensor) -> Tensor:
        """Return the logit of relevance from the first token of a query with a memory and their cosine."""
        logits: Tensor = self.classifier(torch.tanh(self.dense(joined)))[:, 0].float()
        return logits + _COSINE_UNIT * self.cosine[0] * (cosine - self.cosine[1])

    def replacement(self, joined: Tensor) -> Tensor:
        """Return the logit that the newer memory replaces the older, from the start token of the two."""
        logits: Tensor = self.replaced(torch.tanh(self.replaced_dense(joined)))[:, 0].float()
        return logits

    def about_past(self, embedding: Tensor) -> Tensor:
        """Return the logit that a query asks for an earlier state, from its embedding."""
        direction = functional.normalize(embedding.float(), dim=-1) * _EMBEDDING_UNIT
        logits: Tensor = self.past(torch.tanh(self.past_dense(direction)))[:, 0].float()
        return logits


def additive(keep: Tensor) -> Tensor:
    """Return 0 where attention may look and a very low number elsewhere."""
    return torch.zeros(keep.shape, device=keep.device).masked_fill(~keep, _LOWEST)


def _layers(config: SplitConfig, numbers: range) -> nn.ModuleDict:
    return nn.ModuleDict({str(number): _bert.BertLayer(config) for number in numbers})


def run_layers(layers: nn.ModuleDict, hidden: Tensor, mask: Tensor) -> Tensor:
    for layer in layers.values():
        output = layer(hidden, attention_mask=mask.to(hidden.dtype))
        hidden = output[0] if isinstance(output, tuple) else output
    return hidden


def mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of the tokens of each row that the mask keeps."""
    kept = mask[..., None].to(hidden.dtype)
    return (hidden * kept).sum(1) / kept.sum(1).clamp(min=1)


AutoConfig.register(SplitConfig.model_type, SplitConfig)
AutoModelForSequenceClassification.register(SplitConfig, SplitClassifier)
