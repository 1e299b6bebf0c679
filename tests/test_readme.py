"""The first program of the README does what the README shows, killed and run again by a reader who pastes it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def fenced(kind: str) -> str:
    """The first block of this kind."""
    found = re.search(rf"^```{kind}\n(.*?)^```$", README.read_text(), re.M | re.S)
    assert found is not None
    return found[1]


def shown() -> list[list[str]]:
    """What the README shows of each call of the program."""
    _, *calls = fenced("console").split("$ python trip.py\n")
    return [call.splitlines() for call in calls]


def nameless(text: str) -> list[str]:
    """Lines without the run's own id, which is another one each time."""
    return re.sub(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", text).splitlines()


def test_the_first_program_survives_sigkill_as_it_is_shown(tmp_path: Path) -> None:
    """Killed in its second search, it goes on with that search when it is run again; a third call answers at once."""
    first, second = shown()
    assert first.pop() == "Killed"
    (tmp_path / "trip.py").write_text(fenced("python"))
    program = [sys.executable, "trip.py"]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}

    def call() -> subprocess.Popen[str]:
        return subprocess.Popen(program, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    process = call()
    assert process.stdout is not None
    printed = [process.stdout.readline().rstrip("\n") for _ in first]
    process.kill()
    assert (printed, process.communicate()[0]) == (first, "")
    assert nameless(call().communicate()[0]) == nameless("\n".join(second))
    assert nameless(call().communicate()[0]) == second[-1:]


def test_the_second_program_prints_what_is_shown(tmp_path: Path) -> None:
    """As a file of its own: the person is asked, the changed sum is paid."""
    [program] = re.findall(r"^```python\n(# office\.py\n.*?)^```$", README.read_text(), re.M | re.S)
    [said] = re.findall(r"^```console\n\$ python office\.py\n(.*?)^```$", README.read_text(), re.M | re.S)
    (tmp_path / "office.py").write_text(program)
    done = subprocess.run([sys.executable, "office.py"], cwd=tmp_path, capture_output=True, text=True, check=True, encoding="utf-8")
    assert (done.stdout, done.stderr) == (said, "")


def test_what_it_tells_to_type_is_there() -> None:
    """Every make target and every command of the README exists."""
    text, makefile = README.read_text(), (README.parent / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.M))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.M))
    assert named and named <= targets
