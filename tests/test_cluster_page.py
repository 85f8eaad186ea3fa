"""The scripts of docs/clusters.md: each as far as one machine can, with stand-ins for what others have."""

import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from edbl import records
from tests.conftest import Cli

PAGE = (Path(__file__).parents[1] / "docs" / "clusters.md").read_text()
FILE = re.compile(r"^```text\n(?:#![^\n]*\n)?# ([\w.]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILES = {found[1]: found[0].removeprefix("```text\n").removesuffix("```") for found in FILE.finditer(PAGE)}
RECIPE = """
method = "rkd"
preset = "quick"
data.name = "digits"
net.backbone = "mlp"
schedule.epochs = 1
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine where commands say how they are called, and the folder in which scripts run."""
    (tmp_path / "bin").mkdir()
    for name in ("edbl", "srun", "sbatch"):
        stand_in(tmp_path, name, 'printf "%s\\n" "$(basename "$0") $*" >> calls\n')
    stand_in(tmp_path, "scontrol", 'test "$1" = show && printf "a\\nb\\nc\\n" || echo "scontrol $*" >> calls\n')
    stand_in(tmp_path, "sleep", "")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "recipe.toml").write_text(RECIPE)
    return tmp_path


def stand_in(folder: Path, name: str, text: str) -> None:
    script = folder / "bin" / name
    script.write_text(f"#!/bin/sh\n{text}")
    script.chmod(0o755)


def calls(folder: Path, script: str, shell: Sequence[str] = ("bash",), **surroundings: str) -> list[list[str]]:
    """Run a script of the page, and return what it calls."""
    (folder / script).write_text(FILES[script])
    subprocess.run([*shell, script], cwd=folder, env=os.environ | surroundings, check=True, timeout=60)
    return [shlex.split(line) for line in (folder / "calls").read_text().splitlines()]


def test_the_page_has_these_files() -> None:
    assert set(FILES) == {"cluster.yaml", "ray.sbatch", "array.sbatch", "parallel.sh", "sky.yaml"}


def test_a_job_of_an_array_makes_its_run(machine: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(machine)
    [[edbl, *words]] = calls(machine, "array.sbatch", SLURM_ARRAY_TASK_ID="3", OUT="out")
    assert edbl == "edbl"
    assert cli(*words).code == 0
    assert records.read(machine / "out" / "seed3").seed == 3
    again = cli(*words)  # as after a requeue
    assert again.code == 0


def test_a_job_of_an_array_that_is_ended_is_put_in_the_queue_again(machine: Path) -> None:
    stand_in(machine, "edbl", "trap 'echo ended >> calls; exit 143' TERM\nkill -TERM $PPID\n/bin/sleep 20 & wait $!\n")
    (machine / "array.sbatch").write_text(FILES["array.sbatch"])
    surroundings = os.environ | {"SLURM_ARRAY_TASK_ID": "3", "SLURM_JOB_ID": "77", "OUT": "out"}
    subprocess.run(["bash", "array.sbatch"], cwd=machine, env=surroundings, check=False, timeout=60)
    assert "scontrol requeue 77" in (machine / "calls").read_text()


def test_ray_in_a_job_of_slurm(machine: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(machine)
    start = pytest.importorskip("ray.scripts.scripts").start
    surroundings = {"SLURM_JOB_NODELIST": "[a-c]", "SLURM_CPUS_PER_TASK": "16", "SEEDS": "2", "OUT": "out"}
    made = calls(machine, "ray.sbatch", **surroundings)
    starts = {words[words.index("ray") - 1]: words[words.index("ray") :] for words in made if words[0] == "srun"}
    assert starts.keys() == {"--nodelist=a", "--nodelist=b", "--nodelist=c"}
    for node, (_, word, *options) in starts.items():
        given = start.make_context(word, list(options)).params  # Ray has these options
        assert (given["head"], given["num_cpus"], given["block"]) == (node == "--nodelist=a", 16, True)
        assert given["address"] == (None if given["head"] else "a:6379")
    [words] = [words for words in made if words[0] == "edbl"]
    planned = cli(*words[1:], "--dry-run")
    assert planned.code == 0, planned.err
    assert "2 runs: 0 done, 0 unfinished, 2 missing" in planned.out


def test_parallel_makes_a_run_for_each_seed(machine: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(machine)
    # GNU parallel's way with words, as far as the page uses it.
    stand_in(
        machine,
        "parallel",
        'shift 4\ncommand="$*"\nfor seed in ${command##*:::}; do\n'
        '  $(echo "${command%%:::*}" | sed "s/{}/$seed/g")\ndone\n',
    )
    made = calls(machine, "parallel.sh", OUT="out")
    assert [words[-1] for words in made] == [f"out/seed{seed}" for seed in range(4)]
    planned = cli(*made[1][1:], "--dry-run")
    assert (planned.code, "out/seed1" in planned.out) == (0, True)


def test_the_cluster_file_is_as_ray_has_it() -> None:
    util = pytest.importorskip("ray.autoscaler._private.util")
    config = util.prepare_config(yaml.safe_load(FILES["cluster.yaml"]))
    util.validate_config({**config, "cluster_synced_files": []})
    assert config["available_node_types"].keys() == {"head", "gpu"}
    with pytest.raises(Exception, match="unexpected"):
        util.validate_config({**config, "nonsense": 1})


def test_the_sky_file_makes_the_list(machine: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(machine)
    task = yaml.safe_load(FILES["sky.yaml"])
    FILES["run.sh"] = task["run"]
    [words] = calls(machine, "run.sh", SEEDS="2", OUT="out")
    del FILES["run.sh"]
    planned = cli(*words[1:], "--dry-run")
    assert (planned.code, "2 runs: 0 done" in planned.out) == (0, True)
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert "ray" in project["optional-dependencies"]
