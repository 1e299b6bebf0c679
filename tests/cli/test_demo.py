"""`perdure demo` does what it says."""

from __future__ import annotations

from shop_cli import Cli


def test_the_demo_kills_waits_and_goes_on_and_the_bank_pays_once(cli: Cli) -> None:
    """With real processes and a real SIGKILL, from a plain installation."""
    # case B15
    said = cli("demo", code=0)
    for scene in ("1  A run starts", "✗ kill -9", "2  The same command again", "3  Nothing runs now", "4  And the run goes on"):
        assert scene in said.out
    assert "The bank paid once:\n  KL-1042 40.00 EUR" in said.out
    assert "goes on: execution 2" in said.err
