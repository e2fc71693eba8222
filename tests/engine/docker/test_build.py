"""`composesim image build` makes an image that runs training, from a base with Python, without secrets."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import PATIENCE_S, ROOT

pytestmark = pytest.mark.docker
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
TAG = "composesim-test-image:1"


def run(*argv: str | Path, timeout: float = 10 * PATIENCE_S) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What `image build --json` says of an image on this distribution's own Python, with the torch that tests run."""
    wheels = tmp_path_factory.mktemp("wheels")
    base = run(ROOT / "scripts" / "base_image.sh").splitlines()[-1]
    # The base's Python picks the wheels: it may be another version than ours.
    version = run("docker", "run", "--rm", base, "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    index = ["--extra-index-url", os.environ["TORCH_INDEX"]] if os.environ.get("TORCH_INDEX") else []
    wanted = [f"torch=={importlib.metadata.version('torch')}", "click"]
    platform = ["--python-version", version, "--only-binary", ":all:"]
    run(sys.executable, "-m", "pip", "download", "-q", *index, *platform, "--dest", wheels, *wanted)
    requirements = wheels.parent / "requirements.txt"
    requirements.write_text("click\n")
    command = [sys.executable, "-m", "compose_sim", "image", "build", "--base", base, "--tag", TAG, "--json"]
    certificates = ["--ca-certificate", str(CERTIFICATES)] if CERTIFICATES.is_file() else []
    options = ["--wheels", str(wheels), "--requirements", str(requirements), *certificates]
    image: dict[str, object] = json.loads(run(*command, *options, f"--torch={wanted[0]}"))
    return image


def test_it_has_torch_and_the_requirements_and_is_not_root(built: dict[str, object]) -> None:
    code = "import os, click, torch; print(torch.__version__.partition('+')[0], os.getuid(), os.listdir('/tmp'))"
    said = run("docker", "run", "--rm", TAG, "python3", "-W", "ignore", "-c", code)

    assert said == f"{importlib.metadata.version('torch').partition('+')[0]} 1000 []"
    assert isinstance(built["size_bytes"], int)
    assert built["size_bytes"] > 100 << 20


def test_nothing_of_the_build_stays_in_it(built: dict[str, object]) -> None:
    environment = json.loads(run("docker", "image", "inspect", "--format", "{{json .Config.Env}}", TAG))

    assert not [name for name in environment or [] if name.startswith("PIP_")]
    left = run("docker", "run", "--rm", "--user", "0", TAG, "sh", "-c", "find /root/.cache/pip /tmp -type f; true")
    assert left == ""


def test_a_run_passes_on_it(built: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text((ROOT / "templates" / "init" / "train.py").read_text())
    up = [sys.executable, "-m", "compose_sim", "up", "--engine", "docker", "--image", TAG, "--json", "train.py"]
    done = subprocess.run(up, cwd=tmp_path, capture_output=True, text=True, timeout=2 * PATIENCE_S)

    report = json.loads(done.stdout)
    assert (report["verdict"], report["image"]) == ("passed", TAG), report
    assert report["versions"]["image_digest"] == built["digest"]


def test_a_base_that_is_nowhere_is_an_error_of_the_environment(tmp_path: Path) -> None:
    build = [
        sys.executable,
        "-m",
        "compose_sim",
        "image",
        "build",
        "--base",
        "localhost:1/no/such:1",
        "--tag",
        "composesim-never:1",
    ]
    done = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)

    assert done.returncode == 4
    assert "could not be built from 'localhost:1/no/such:1', which is not on this machine" in done.stderr
