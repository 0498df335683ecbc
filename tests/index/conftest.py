import pytest

from mnemorank import MemoryIndex


@pytest.fixture
def path(tmp_path):
    return tmp_path / "memories.db"


@pytest.fixture
def index(split_onnx, path):
    with MemoryIndex.open(path, split_onnx, threads=1) as index:
        yield index
