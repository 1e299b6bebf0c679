"""Record the example as it really runs: two terminals, one database, an amount that a person changes.

python examples/refund/record.py            print the recording
python examples/refund/record.py --write    put it into docs/how-to/approvals.md
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "how-to" / "approvals.md"
BEGIN, END = "<!-- recorded by examples/refund/record.py -->", "<!-- end of the recording -->"
COMPLAINT = "Order KL-1042 arrived with a cracked lid."
EDITED = '{"order": "KL-1042", "cents": 1900}'
PATIENCE = 120
"""Seconds that a command may take."""


@dataclass(frozen=True)
class Recording:
    """What the two terminals showed, and what was paid."""

    first: str
    second: str
    paid: str

    @property
    def markdown(self) -> str:
        """As it stands in the docs."""
        return f"The first terminal:\n\n```text\n{self.first}```\n\nThe second one, meanwhile:\n\n```text\n{self.second}```\n"


def record() -> Recording:
    """Run both terminals in an empty folder.

    Raises:
        RuntimeError: The run ended without a request.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "app.py").write_text((HERE / "app.py").read_text())
        start = ["run", "app.py", "refunds", "--text", COMPLAINT, "--wait"]
        first = [prompt(start)]
        with _open(folder, start) as terminal:
            assert terminal.stdout is not None
            request = None
            try:
                for line in terminal.stdout:
                    first.append(line)
                    found = re.search(r"approvals deny (\w+)", line)
                    if found:
                        request = found[1]
                        break
                if request is None:
                    raise RuntimeError("The run ended without asking:\n" + "".join(first))
                answers = [
                    ["approvals", "list"],
                    ["approvals", "approve", request, "--input", EDITED, "--by", "eva"],
                    ["approvals", "deny", request, "--by", "kim"],
                ]
                second = "\n".join(prompt(each) + _finish(folder, each) for each in answers)
                first.append(terminal.communicate(timeout=PATIENCE)[0])
            except BaseException:
                terminal.kill()
                raise
        book = folder / "paid.txt"
        second += "\n$ cat paid.txt\n" + book.read_text()
        # Nobody needs to know on whose machine it was recorded.
        return Recording("".join(first).replace(f"{socket.gethostname()}/", "desk/"), second, book.read_text())


def prompt(arguments: list[str]) -> str:
    """The line that a person types."""
    return f"$ perdure {shlex.join(arguments)}\n"


def _open(folder: Path, arguments: list[str]) -> subprocess.Popen[str]:
    hidden = ("PERDURE_", "NO_COLOR", "FORCE_COLOR")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)} | {"COLUMNS": "120", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-m", "perdure.cli", *arguments]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8")


def _finish(folder: Path, arguments: list[str]) -> str:
    with _open(folder, arguments) as process:
        return process.communicate(timeout=PATIENCE)[0]


def shape(text: str) -> str:
    """The text without what differs from one recording to the next: ids, moments, durations, and how wide a table is."""
    text = re.sub(r"\b[0-9a-f]{8}-[0-9a-f-]{27}\b", "ID", text)
    text = re.sub(r"\bdesk/[0-9a-f]{12}", "WORKER", text)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "MOMENT", text)
    text = re.sub(r"\b[0-9a-f]{8}\b", "ID", text)
    text = re.sub(r"\d+(\.\d+)? (s|min|h|ms|d)\b( \d+ s\b)?", "SPAN", text)
    return re.sub(r" {2,}", "  ", text)


def main() -> None:
    """Print the recording, or put it into the page."""
    text = record().markdown
    if "--write" not in sys.argv[1:]:
        print(text)
        return
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
