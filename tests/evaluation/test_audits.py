"""Audits, on data and models with known shortcuts and on some without."""

from __future__ import annotations

import json
import random
import zlib
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mnemorank import InputError, Memory, Model, Moment
from mnemorank.artifact.manifest import MANIFEST, Manifest, write_manifest
from mnemorank.cli import main
from mnemorank.data.examples import Candidate, Example
from mnemorank.evaluation.audits import AuditInput, audits, read_audit_file
from mnemorank.evaluation.audits.metadata import assign_folds
from mnemorank.model.model import Scored
from tests.conftest import build_tokenizer, write_overlap_model

WORDS = "cat dog doctor dentist march april python rust lisbon berlin aurora zenith plan trip flight database".split()


def pairs(count, make):
    """Examples of a relevant and an irrelevant memory in random order."""
    rng = random.Random(7)
    examples = []
    for number in range(count):
        relevant, irrelevant = make(rng)
        candidates = [Candidate(relevant, 1.0), Candidate(irrelevant, 0.0)]
        rng.shuffle(candidates)
        query = f"{' '.join(rng.sample(WORDS, 3))} {number}"
        examples.append(Example(str(number), query, tuple(candidates), group=f"group {number}"))
    return examples


def text(rng, length=8):
    return " ".join(rng.choices(WORDS, k=length))


def run(name, examples, **fields):
    return audits[name].run(AuditInput(examples, is_triplets=True, **fields))


def only_relevant_is_ongoing(rng):
    start, end = Moment(rng.randint(2000, 2020)), Moment(2022)
    return Memory(text(rng), occurred_start=start), Memory(text(rng), occurred_start=start, occurred_end=end)


def same_metadata(rng):
    dates = {"occurred_start": Moment(rng.randint(2000, 2020)), "occurred_end": rng.choice([None, Moment(2022)])}
    return Memory(text(rng), **dates), Memory(text(rng), **dates)


def test_metadata_only_finds_a_shortcut_in_the_dates():
    finding = run("metadata-only", pairs(80, only_relevant_is_ongoing))
    assert finding.verdict == "fail"
    assert finding.number == 1.0
    assert finding.details["by_part"]["dates"] == 1.0
    assert finding.details["rules"]["no end date wins"] == 1.0
    assert finding.examples


def test_metadata_only_passes_data_without_shortcuts():
    finding = run("metadata-only", pairs(200, same_metadata))
    assert finding.verdict == "pass"
    assert 0.4 <= finding.number <= 0.6


def test_metadata_only_finds_shortcuts_in_type_and_length():
    by_type = run(
        "metadata-only", pairs(80, lambda rng: (Memory(text(rng), type="world"), Memory(text(rng), type="event")))
    )
    assert by_type.details["by_part"]["type"] == 1.0
    by_length = run("metadata-only", pairs(80, lambda rng: (Memory(text(rng, 20)), Memory(text(rng, 5)))))
    assert by_length.details["by_part"]["length"] == 1.0


def test_metadata_only_cannot_memorize_mirrored_triplets():
    """Each memory is relevant once and irrelevant once; a triplet and its mirror image must be in the same fold."""
    mirrored = []
    for number, example in enumerate(pairs(60, only_relevant_is_ongoing)):
        first, second = example.candidates
        swapped = (Candidate(first.memory, second.label), Candidate(second.memory, first.label))
        mirrored += [
            example,
            replace(example, id=f"m{number}", query=f"mirror {number}", candidates=swapped, group=None),
        ]
    assert run("metadata-only", mirrored).number == pytest.approx(0.5)


def test_metadata_only_warns_if_the_file_lists_relevant_candidates_first():
    examples = []
    rng = random.Random(3)
    for number in range(40):
        memories = [Candidate(Memory(text(rng)), float(i == 0)) for i in range(5)]
        examples.append(Example(str(number), f"q {number}", tuple(memories)))
    finding = audits["metadata-only"].run(AuditInput(examples))
    assert finding.verdict == "pass"
    assert finding.details["by_part"]["position"] == 1.0
    assert "do not use its order as a first stage" in finding.summary


def test_examples_that_share_a_memory_or_group_share_a_fold():
    first, second, third = (
        Example(str(i), f"q{i}", (Candidate(Memory(f"m{i % 2}"), 1.0),), group=None) for i in range(3)
    )
    folds = assign_folds([first, second, third], 1000, by_memory=True)
    assert folds[0] == folds[2] != folds[1]
    grouped = [replace(first, group="g"), replace(second, group="g"), third]
    assert len(set(assign_folds(grouped, 1000)[:2])) == 1


def test_folds_of_a_lone_surrogate():
    assert len(assign_folds([Example("0", "\ud800", (), group=None)], 5)) == 1


class Rule:
    """A model that scores by a rule."""

    def __init__(self, rule):
        self.rule, self.manifest = rule, Manifest(name="rule")

    def score(self, query, memories, **_):
        raw = np.array([float(self.rule(i, memory)) for i, memory in enumerate(memories)])
        return Scored(raw, [None] * len(memories), self.manifest)


@pytest.mark.parametrize(
    ("rule", "verdict", "metadata"),
    [
        (lambda i, memory: memory.type == "world", "fail", "type"),
        (lambda i, memory: memory.is_ongoing, "pass", "dates"),
        (lambda i, memory: i, "fail", "order"),
    ],
)
def test_shuffle_finds_the_metadata_that_decides(rule, verdict, metadata):
    def make(rng):
        relevant, irrelevant = only_relevant_is_ongoing(rng)
        return replace(relevant, type="world"), replace(irrelevant, type="event")

    finding = run("shuffle", pairs(60, make), models={"rule": Rule(rule)})
    assert finding.verdict == verdict
    losses = finding.details["losses"]
    assert max(losses, key=losses.get) == metadata


def test_length_bias_of_data_and_of_a_model():
    biased = pairs(60, lambda rng: (Memory(text(rng, 20)), Memory(text(rng, rng.randint(3, 10)))))
    assert run("length", biased).verdict == "fail"
    fair = pairs(60, lambda rng: (Memory(text(rng, rng.randint(3, 20))), Memory(text(rng, rng.randint(3, 20)))))
    assert run("length", fair).verdict == "pass"
    finding = run("length", fair, models={"rule": Rule(lambda i, memory: len(memory.text))})
    assert finding.verdict == "fail"
    assert finding.number > 0.9
    assert finding.examples
    assert (
        run("length", fair, models={"rule": Rule(lambda i, memory: zlib.crc32(memory.text.encode()) % 97)}).verdict
        == "pass"
    )


def test_leakage_finds_near_duplicates_and_shared_groups():
    train = pairs(50, same_metadata)
    clean = [
        replace(example, query=f"entirely other question {i}", group=f"new {i}")
        for i, example in enumerate(pairs(20, only_relevant_is_ongoing))
    ]
    clean = [
        replace(
            example,
            candidates=tuple(
                Candidate(Memory(f"fresh text {i} {c.label} about nothing known"), c.label) for c in example.candidates
            ),
        )
        for i, example in enumerate(clean)
    ]
    assert run("leakage", clean, train=train).verdict == "pass"
    by_query = [replace(clean[0], query=train[3].query.upper() + "?"), *clean[1:]]
    finding = run("leakage", by_query, train=train)
    assert (finding.verdict, finding.details["queries"], finding.number) == ("fail", 1, 0.05)
    by_memory = [replace(clean[0], candidates=train[4].candidates), *clean[1:]]
    assert run("leakage", by_memory, train=train).details["memories"] == 1
    by_group = [replace(clean[0], group="group 5"), *clean[1:]]
    assert run("leakage", by_group, train=train).verdict == "fail"


def test_label_noise_finds_positives_that_competent_judges_rank_last():
    def overlapping(rng):
        return Memory("placeholder"), Memory(text(rng))

    examples = []
    for number, example in enumerate(pairs(50, overlapping)):
        labels = [c.label for c in example.candidates]
        is_swapped = number < 5
        memories = [Memory(example.query if (label > 0) != is_swapped else "nothing at all") for label in labels]
        examples.append(replace(example, candidates=tuple(map(Candidate, memories, labels))))
    finding = run("label-noise", examples, models={"rule": Rule(lambda i, memory: memory.text != "nothing at all")})
    assert finding.verdict == "fail"
    assert finding.details["doubtful"] == ["0", "1", "2", "3", "4"]
    blind = run("label-noise", examples, models={"rule": Rule(lambda i, memory: 0)})
    assert blind.verdict == "skipped"
    assert "two judges" in blind.summary


def graded(count, relevant="long enough to be the longer one of the two texts", on_topic="short"):
    """Pairs of an answer (1.0) and a memory that is only on topic (0.2)."""
    return [
        Example(
            str(number),
            f"question {number} about {WORDS[number % len(WORDS)]}",
            (Candidate(Memory(f"{relevant} {number}"), 1.0), Candidate(Memory(f"{on_topic} {number}"), 0.2)),
            group=f"group {number}",
            relevant_from=0.5,
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("name", ["metadata-only", "length"])
def test_candidates_graded_below_the_threshold_are_irrelevant(name):
    finding = run(name, graded(40))
    assert finding.verdict == "fail"
    assert finding.number == (1.0 if name == "metadata-only" else 0.5)


def test_models_are_audited_on_graded_pairs():
    by_length = {"rule": Rule(lambda i, memory: len(memory.text))}
    assert run("shuffle", graded(40), models=by_length).details["accuracy"] == 1.0
    third = Candidate(Memory("the very longest one of all, and not even on topic at all"), 0.0)
    both = [replace(example, candidates=(*example.candidates, third)) for example in graded(40)]
    assert run("shuffle", both, models=by_length).details["accuracy"] == 0.5


def test_label_noise_of_graded_pairs():
    examples = [
        replace(example, query=example.memories[int(number < 6)].text)
        for number, example in enumerate(graded(60, relevant="entirely else", on_topic="on topic"))
    ]
    finding = run("label-noise", examples, models={"rule": Rule(lambda i, memory: memory.text in PREFERRED)})
    assert finding.details["doubtful"] == [str(number) for number in range(6)]
    assert "labeled relevant: entirely else 0 | labeled irrelevant: on topic 0" in finding.examples[0]


# What the judge finds relevant: for six questions the memory that is only on topic, for the others the answer.
PREFERRED = {f"on topic {number}" for number in range(6)} | {f"entirely else {number}" for number in range(6, 60)}


def test_candidates_graded_below_the_threshold_do_not_leak():
    test, known = graded(40), graded(40, relevant="something that nobody wrote in the test at all")
    train = [replace(example, query=f"another question {i}", group=None) for i, example in enumerate(known)]
    assert run("leakage", test, train=train).number == 0
    all_relevant = [[replace(example, relevant_from=0.0) for example in part] for part in (test, train)]
    assert run("leakage", all_relevant[0], train=all_relevant[1]).number == 1.0


def test_a_query_too_long_for_the_model_does_not_fail_the_audit(tiny_onnx):
    memories = (Candidate(Memory("the cat"), 1.0), Candidate(Memory("ruby works at aurora"), 0.0))
    examples = [Example(str(i), f"{'ruby works ' * 90 * i}the cat", memories, group=str(i)) for i in range(2)]
    finding = run("shuffle", examples, models={"tiny": Model.load(tiny_onnx)})
    assert finding.details["examples"] == 2


def test_template_audit_runs_the_same_weights_without_a_template(tmp_path):
    """The overlap model compares two segments; without a template it sees only one, and all scores are equal."""
    folder = write_overlap_model(tmp_path / "model")
    write_manifest(folder, Manifest(name="overlap", max_length=64))
    assert (folder / MANIFEST).exists()
    memories = (Candidate(Memory("ruby works at aurora"), 1.0), Candidate(Memory("the cat"), 0.0))
    examples = [Example(str(i), "where ruby works", memories, group=str(i)) for i in range(5)]
    finding = run("template", examples, models={str(folder): Model.load(folder)})
    assert finding.verdict == "pass"
    assert (finding.details["with"], finding.details["without"]) == (1.0, 0.5)


def write_token_counter(folder, token):
    """An ONNX model with the `features` template that counts one token and reads nothing else."""
    folder.mkdir()
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens(["[CAUSAL]"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "pad_token_id": 0}))
    names = ("input_ids", "attention_mask", "token_type_ids")
    nodes = [
        helper.make_node("Equal", ["input_ids", "token"], ["is_token"]),
        helper.make_node("Cast", ["is_token"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["number", "axis"], ["logits"], keepdims=1),
    ]
    constants = {"token": np.array(tokenizer.token_to_id(token)), "axis": np.array([1])}
    graph = helper.make_graph(
        nodes,
        "counter",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"]) for name in names],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 1])],
        [numpy_helper.from_array(value.astype(np.int64), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, str(folder / "model.onnx"))
    manifest = Manifest(name="counter", format="plain", template="features", max_length=128)
    write_manifest(folder, manifest)
    return folder


@pytest.mark.parametrize(
    ("token", "verdict", "swapped", "none"), [("[CAUSAL]", "fail", 0.0, 0.5), ("now", "pass", 1.0, 1.0)]
)
def test_features_distinguishes_models_that_read_feature_tokens_from_those_that_read_the_text(
    tmp_path, token, verdict, swapped, none
):
    """In a pair, the two get each other's features, which reverses a model that relies on them."""
    folder = write_token_counter(tmp_path / "counter", token)
    examples = pairs(20, lambda rng: (Memory(f"{text(rng)} because now"), Memory(f"{text(rng)} before that")))
    finding = run("features", examples, models={str(folder): Model.load(folder, probe=False)})
    assert finding.verdict == verdict
    assert finding.details["accuracy"] == {"true": 1.0, "swapped": swapped, "none": none}
    assert finding.details["map"]["true"] == 1.0
    assert finding.details["map"]["swapped"] == (0.5 if verdict == "fail" else 1.0)


def test_features_skips_models_without_features_in_their_input(tmp_path):
    folder = write_overlap_model(tmp_path / "model")
    finding = run("features", pairs(5, same_metadata), models={str(folder): Model.load(folder)})
    assert finding.verdict == "skipped"


@pytest.mark.parametrize("name", ["features", "shuffle", "template", "label-noise"])
def test_audits_of_models_are_skipped_without_a_model(name):
    finding = run(name, pairs(5, same_metadata))
    assert finding.verdict == "skipped"
    assert "--model" in finding.summary


WIKI = {
    "_id": "1",
    "question": "Where was the maker of Aurora born?",
    "context": [["Aurora", ["Aurora was made by Ruby."]], ["Zenith", ["Zenith is a lab."]]],
    "supporting_facts": [["Aurora", 0]],
}


@pytest.mark.parametrize("task", [[], ["--task", "lists"]])
@pytest.mark.parametrize("empty", ["PATH", "--train"])
def test_an_empty_file_is_an_error(tmp_path, capsys, task, empty):
    (tmp_path / "full.jsonl").write_text('{"query": "q", "candidates": [{"text": "a", "label": 1}]}')
    (tmp_path / "empty.jsonl").write_text("\n")
    audited, trained_on = ("empty", "full") if empty == "PATH" else ("full", "empty")
    command = ["audit", str(tmp_path / f"{audited}.jsonl"), "--train", str(tmp_path / f"{trained_on}.jsonl"), *task]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert f"{tmp_path}/empty.jsonl" in error
    assert error.count("\n") == 1


def test_training_data_may_be_in_the_format_of_the_task_or_in_ours(tmp_path, capsys):
    audited, of_task, ours = (tmp_path / name for name in ("test.json", "train.json", "lists.jsonl"))
    audited.write_text(json.dumps([WIKI]))
    of_task.write_text(json.dumps([{**WIKI, "question": "Quite another one?"}], indent=1))
    ours.write_text(json.dumps({"query": WIKI["question"], "candidates": [{"text": "a", "label": 1}]}))
    command = ["audit", str(audited), "--task", "2wiki", "--only", "leakage", "--json"]
    details = []
    for train in (of_task, ours):
        assert main([*command, "--train", str(train)]) == 0
        details.append(json.loads(capsys.readouterr().out)["findings"][0]["details"])
    assert details == [{"queries": 0, "memories": 1, "groups": 0}, {"queries": 1, "memories": 0, "groups": 0}]
    folder = tmp_path / "beir"
    assert main(["audit", str(ours), "--task", "lists", "--train", str(folder)]) == 2
    assert str(folder) in capsys.readouterr().err


def test_the_format_is_detected(tmp_path):
    triplet = {"query": "q", "positive": {"text": "a"}, "negative": {"text": "b"}, "matter": "m1", "kind": "k"}
    lists = {"query": "q", "candidates": [{"text": "a", "label": 1}]}
    graded = {"query": "q", "text": "a", "label": 0.5}
    for record, expected in ((triplet, True), (lists, False), (graded, False)):
        path = tmp_path / "d.jsonl"
        path.write_text(json.dumps(record))
        examples, is_triplets = read_audit_file(path)
        assert is_triplets is expected
        assert len(examples) == 1
    path.write_text(json.dumps(triplet))
    (example,), _ = read_audit_file(path)
    assert (example.group, example.kind) == ("m1", "k")
    path.write_text('{"text": "a"}')
    with pytest.raises(InputError, match=r"d\.jsonl:1"):
        read_audit_file(path)
