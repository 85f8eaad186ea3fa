"""What all tests share: one thread, the command line in this process, and a disk that gets full."""

import errno
import os
import re
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from tests.serving import Caller

torch.set_num_threads(1)

# Tests that take seconds and have quicker ones beside them; `make slow` runs them.
SLOW = re.compile(
    r"test_docs.py::test_what_a_page_tells_to_type_works\[docs/"
    r"(commands|analysis|protocols|examples|adding-a-method|recipes|studies|large|own-network|clusters|"
    r"methods/(acil|gem|iib|remix|lwf-mc|vanilla-mkd))|"
    r"test_shared.py::test_(all_other_methods|torchrun|one_that_is_gone_ends_all_with_one_message\[(1-19|0))|"
    r"test_cluster.py::test_(a_search_has|a_study_on|the_small_scale_on|a_run_that_another|logs_are_written)|"
    r"test_contract.py::test_a_run_from_the_command_line_with_the_default_backbone_is_done\[(?!edbl|podnet|foster|lda)|"
    r"test_strangers.py::test_nor_is_one_of_a_finished_run\[(?!recipe|phases)|"
    r"test_tuning.py::test_both_ends_of_all_that_is_searched_can_be_run\[(?!edbl|lda)|"
    r"test_folders.py::test_a_log_that_is_none_is_one_message\[rows: (nested|a number|an order)|"
    r"test_serve_safe.py::test_the_schema_holds\[2|test_far.py::test_a_run_has_the_same_bits\[edbl|"
    r"test_fused.py::test_training_and_teaching\[([13]-widths[0-3]|3-widths4-5-2)|"
    r"test_queue.py::test_(times_are_about|runs_by_the_rule_wait|minutes_end_a_run|a_process_that_is_killed)|"
    r"test_cli.py::test_(a_single_run_joins|the_same_command_goes_on_with_a_run|a_reader_that_leaves|a_table_is_folded|"
    r"runs_of_a_method_file|a_demo_that_was_stopped|a_class_order_from_a_file|any_base_and_step|names_with_brackets|"
    r"a_saved_recipe_runs|a_run_is_counted_once)|"
    r"test_rule.py::test_the_same_stream|"
    r"test_many.py::test_(runs_end_with_the_process_that_started_them\[SIG(TERM|HUP|INT)|a_killed_process_ends_no_run\[[19]\]|"
    r"threads_of_a_run|a_method_file_with_options|those_that_are_done|each_run_is_as|runs_in_several_folders)|"
    r"test_bench.py::test_(a_slower_engine|the_engine_adds)|"
    r"test_check.py::test_(what_it_must_not_see|methods_of_the_package_pass\[(gem|lwf)|ordinary_pytorch_code_passes\[draws|"
    r"what_a_step_must_not_do_is_named_with_its_line\[(logits|torch.is_nonzero|3.0 in))|"
    r"test_starts.py::test_(a_record_tells_which|where_the_first_fails)|"
    r"test_studies.py::test_(reproduce_runs_what|a_page_with_tables|beginning_anew|seeds_of_a_method)|"
    r"test_step.py::test_a_slow_backbone|"
    r"test_clean_norm.py::test_(a_state_that_is_saved|later_tasks_show)|"
    r"test_users.py::test_(data_and_backbone_from_files|several_runs_show)|"
    r"test_contract.py::test_(killed_and_resumed_equals_uninterrupted\[.*(0.1|0.97)\]|a_bar_ends_at_its_end\[(?!edbl|bic))"
)


@dataclass(frozen=True)
class Finished:
    """How a command ended."""

    code: int
    out: str
    err: str


Cli = Callable[..., Finished]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark slow tests, which are left out unless they are asked for."""
    for item in items:
        if SLOW.search(item.nodeid):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let each test compute its own features, and leave the user's alone."""
    monkeypatch.setenv("EDBL_CACHE", str(tmp_path_factory.getbasetemp() / f"cache-{uuid.uuid4().hex}"))


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a backbone that is none in the place of each pretrained one."""
    from edbl.nets import pretrained
    from tests.backbones import Stand

    monkeypatch.setattr(pretrained, "find", lambda name: Stand())


@pytest.fixture
def call(stand_in: None, tmp_path: Path) -> "Iterator[Caller]":
    """Serve a new model, with such a backbone."""
    from tests.serving import NEW, served

    with served(tmp_path / "m", **NEW) as found:
        yield found


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command as a user would and return exit code and output."""
    from edbl.cli import main

    def run(*arguments: object) -> Finished:
        monkeypatch.setattr(sys, "argv", ["edbl", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        return Finished(code, *capsys.readouterr())

    return run


@contextmanager
def full_disk(after: int) -> Iterator[None]:
    """Let the disk be full once ``after`` files are written."""
    fsync, left = os.fsync, iter(range(after))

    def full(descriptor: int) -> None:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", full)
        yield
