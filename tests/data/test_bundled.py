from __future__ import annotations

import pytest

from mnemorank.data.bundled import bundled_dataset
from mnemorank.data.formats import detect_format
from mnemorank.errors import NotFoundError


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_bundled_datasets_are_files_in_our_formats(split):
    assert detect_format(bundled_dataset("dated", split)) == "triplets"


@pytest.mark.parametrize(("name", "split"), [("dated", "all"), ("nosuch", "train")])
def test_an_unknown_dataset_is_not_found(name, split):
    with pytest.raises(NotFoundError):
        bundled_dataset(name, split)
