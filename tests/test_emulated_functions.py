"""Each function of torch for CUDA and process groups, and each operator without a CPU kernel, has a known state under emulation."""

from __future__ import annotations

import pytest
import torch

from scripts.emulation_page import FAILED, PAGE, page, walk


@pytest.mark.train
def test_no_function_fails_and_the_page_shows_the_state_of_each() -> None:
    found = walk()

    assert {name: why for name, (state, why) in found.items() if state == FAILED} == {}
    assert found["torch.distributed.all_reduce"][0] == "as on a GPU"
    assert found["torch.cuda.CUDAGraph"][0] == found["aten._cslt_compress"][0] == "refused"
    version = torch.__version__.partition("+")[0]
    if f"function of torch {version} " in PAGE.read_text():  # the page is about one version
        assert page(found, version) == PAGE.read_text()
