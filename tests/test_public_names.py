import subprocess
import sys

import mnemorank


def test_public_names():
    assert sorted(mnemorank.__all__) == [
        "ArtifactError",
        "ConflictError",
        "CrossEncoder",
        "Failover",
        "InputError",
        "Memory",
        "MemoryIndex",
        "MissingExtraError",
        "MnemorankError",
        "Model",
        "Moment",
        "NotFoundError",
        "Options",
        "Prepared",
        "ProbeWarning",
        "QueryTooLongError",
        "Ranking",
        "Reranker",
        "RerankerService",
        "Result",
        "Score",
        "ScorerError",
        "StorageError",
        "__version__",
    ]


def test_reranking_does_not_import_optional_packages():
    code = (
        "import sys, mnemorank; mnemorank.Reranker().rerank('a', ['b']);"
        "print([m for m in ('torch', 'transformers', 'fastapi', 'sqlalchemy', 'onnx', 'bm25s') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_importing_does_not_load_the_runtime():
    code = "import sys, mnemorank; print('onnxruntime' in sys.modules, 'tokenizers' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False"]
