"""Everything fails at once on Postgres: workers are killed, the server restarts, sessions end, clocks are ten minutes off. Nothing happens twice, nothing is lost."""

from __future__ import annotations

import asyncio
import collections
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from chaos_worker import TOOLS, deeds, engine_of, happened

from perdure import Engine, Run
from perdure.core.errors import PerdureError
from perdure.testing.postgres import PostgresServer

HERE = Path(__file__).parent
SKEWS = ("", "+10m", "-10m")
"""How far the wall clocks of workers are off, by `faketime`. The monotonic clock is not touched."""


@dataclass
class Figures:
    """What was done to the workers and the server, and what came of it."""

    runs: int = 0
    kills: int = 0
    restarts_fast: int = 0
    restarts_immediate: int = 0
    sessions_ended: int = 0
    listeners_ended: int = 0
    settled_by_hand: int = 0
    approved: int = 0
    claims: int = 0
    completed: int = 0
    twice: list[str] = field(default_factory=list[str])
    lost: list[str] = field(default_factory=list[str])
    seconds: float = 0


class Zoo:
    """Workers by pid, started by a launcher for each clock."""

    def __init__(self, dsn: str, schema: str, folder: Path, *, pooler: bool, skews: tuple[str, ...]) -> None:
        self.pids: list[int] = []
        self._at = 0
        command = [sys.executable, str(HERE / "chaos_worker.py"), dsn, schema, str(folder), "pooler" if pooler else "direct"]
        self._launchers = [
            subprocess.Popen(
                ["faketime", "-f", skew, *command] if skew else command,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                env={**os.environ, "DONT_FAKE_MONOTONIC": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"},
            )
            for skew in skews
        ]  # fmt: skip
        for launcher in self._launchers:
            assert launcher.stdout is not None and launcher.stdout.readline().strip() == "ready"

    def start(self) -> None:
        launcher = self._launchers[self._at % len(self._launchers)]
        self._at += 1
        assert launcher.stdin is not None and launcher.stdout is not None
        launcher.stdin.write("start\n")
        launcher.stdin.flush()
        self.pids.append(int(launcher.stdout.readline()))

    def kill(self, pid: int) -> None:
        self.pids.remove(pid)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it could not begin while the server was away; a supervisor starts another

    def close(self) -> None:
        for pid in list(self.pids):
            self.kill(pid)
        for launcher in self._launchers:
            assert launcher.stdin is not None and launcher.stdout is not None
            launcher.stdin.close()
            launcher.wait(20)
            launcher.stdout.close()


class Chaos:
    """One run of it."""

    def __init__(
        self, server: PostgresServer, dsn: str, folder: Path, *, pooler: bool, runs: int, workers: int, seed: int, skews: tuple[str, ...]
    ) -> None:
        self.server, self.folder, self.schema = server, folder, f"chaos_{seed}"
        self.figures = Figures(runs=runs)
        self._workers, self._chance = workers, random.Random(seed)
        self._sql(f"CREATE TABLE orders_{self.schema} (run TEXT)")
        self.engine = engine_of(dsn, self.schema, folder, pooler=pooler, workers=0)
        self.zoo = Zoo(dsn, self.schema, folder, pooler=pooler, skews=skews)
        self._over = asyncio.Event()

    def _sql(self, text: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.server.dsn, autocommit=True) as connection:
            cursor = connection.execute(text.encode())
            return cursor.fetchall() if cursor.description else []

    async def run(self) -> Figures:
        began = time.monotonic()
        async with self.engine as engine:
            ids = [(await engine.start("shop", {"n": number}, key=str(number))).id for number in range(self.figures.runs)]
            for _ in range(self._workers):
                self.zoo.start()
            troubles = [asyncio.ensure_future(each) for each in (self._kill(), self._trouble_the_server(), self._be_a_person(engine))]
            try:
                for run_id in ids:
                    run = await self._settled(engine, run_id)
                    assert run.status == "completed", f"{run.id} is {run.status}: {run.error}"
            finally:
                self._over.set()
                await asyncio.gather(*troubles)
            await self._count(engine, ids)
        self.figures.seconds = round(time.monotonic() - began, 1)
        return self.figures

    async def _settled(self, engine: Engine, run_id: str) -> Run:
        while True:
            try:
                return await engine.settled(run_id)
            except PerdureError:
                await self._pause(0.2)

    async def _pause(self, seconds: float) -> bool:
        """Some time, or until it is over. True: go on."""
        await asyncio.wait([asyncio.ensure_future(self._over.wait())], timeout=seconds)
        return not self._over.is_set()

    async def _kill(self) -> None:
        while await self._pause(self._chance.uniform(1, 3)):
            self.zoo.kill(self._chance.choice(self.zoo.pids))
            self.zoo.start()
            self.figures.kills += 1

    async def _trouble_the_server(self) -> None:
        while await self._pause(self._chance.uniform(1, 3)):
            what = self._chance.choice(["fast", "immediate", "sessions", "sessions", "listeners"])
            if what == "fast":
                await asyncio.to_thread(self.server.restart, "fast")
                self.figures.restarts_fast += 1
            elif what == "immediate":
                await asyncio.to_thread(self.server.restart, "immediate")
                self.figures.restarts_immediate += 1
            else:
                # Without its listener a worker hears of nothing until it has another: what was said meanwhile is lost to it.
                which = "query LIKE 'LISTEN%'" if what == "listeners" else f"pid % 2 = {self._chance.randrange(2)}"
                ended = await asyncio.to_thread(
                    self._sql,
                    f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' AND {which}",
                )
                if what == "listeners":
                    self.figures.listeners_ended += len(ended)
                else:
                    self.figures.sessions_ended += len(ended)

    async def _be_a_person(self, engine: Engine) -> None:
        """Approve what asks, and look outside for what nobody knows."""
        while await self._pause(0.3):
            try:
                for request in await engine.requests(kind="approval", limit=200):
                    if (await request.approve(by="eva")).outcome == "resolved":
                        self.figures.approved += 1
                for effect in await engine.effects(limit=200):
                    if effect.row.unknown != "ask":
                        continue
                    if happened(self.folder, effect.key):
                        await engine.settle(effect.key, "done", "ok", by="eva")
                    else:
                        await engine.settle(effect.key, "run", by="eva")
                    self.figures.settled_by_hand += 1
            except PerdureError:
                pass  # the server is away, or the earlier try may still be at it: look again

    async def _count(self, engine: Engine, ids: list[str]) -> None:
        figures = self.figures
        done = collections.Counter((line.split()[0], line.split()[1]) for line in deeds(self.folder))
        done.update((run, "order") for (run,) in await asyncio.to_thread(self._sql, f"SELECT run FROM orders_{self.schema}"))
        figures.twice = [f"{run} {tool}: {count}" for (run, tool), count in done.items() if count > 1]
        figures.lost = [f"{run} {tool}" for run in ids for tool in TOOLS if not done[run, tool]]
        for run_id in ids:
            run = await engine.run(run_id)
            figures.completed += run.status == "completed"
            figures.claims += run.epoch


@contextmanager
def pooled(server: PostgresServer) -> Iterator[str]:
    """PgBouncer in transaction mode before the server."""
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="perdure-pgbouncer-"))
    folder.chmod(0o777)
    (folder / "settings.ini").write_text(
        f"[databases]\npostgres = host={server.folder} dbname=postgres user=postgres pool_size=20\n"
        f"[pgbouncer]\nlisten_addr =\nunix_socket_dir = {folder}\nauth_type = any\npool_mode = transaction\nmax_client_conn = 300\nlogfile = {folder}/log\n"
        f"pidfile = {folder}/pid\nserver_login_retry = 0.2\n"
    )
    user = "embedded_postgres" if os.geteuid() == 0 else None
    pooler = subprocess.Popen(["pgbouncer", "-q", str(folder / "settings.ini")], user=user, stderr=subprocess.DEVNULL)
    while not (folder / ".s.PGSQL.6432").exists():
        assert pooler.poll() is None
    yield f"postgresql://postgres@/postgres?host={folder}&port=6432"
    pooler.terminate()
    pooler.wait(20)
    shutil.rmtree(folder, ignore_errors=True)


async def chaos(tmp_path: Path, *, pooler: bool, runs: int, workers: int, skews: tuple[str, ...], seed: int = 7) -> Figures:
    with ExitStack() as stack:
        server = stack.enter_context(PostgresServer())
        dsn = stack.enter_context(pooled(server)) if pooler else server.dsn
        made = Chaos(server, dsn, tmp_path, pooler=pooler, runs=runs, workers=workers, seed=seed, skews=skews)
        stack.callback(made.zoo.close)
        figures = await made.run()
    print(json.dumps(asdict(figures)))
    return figures


def judge(figures: Figures) -> None:
    assert (figures.twice, figures.lost, figures.completed) == ([], [], figures.runs)
    assert figures.kills > 0 and figures.restarts_fast + figures.restarts_immediate + figures.sessions_ended > 0


async def test_a_few_workers_and_a_restless_server(tmp_path: Path) -> None:
    """Two workers, 40 runs: the small one, on every change. # case H9"""
    judge(await chaos(tmp_path, pooler=False, runs=40, workers=2, skews=("",)))


@pytest.mark.nightly
@pytest.mark.parametrize("way", ["direct", "pooler"])
async def test_four_workers_with_clocks_ten_minutes_off(tmp_path: Path, way: str) -> None:
    """500 runs with effects and approvals; needs the programs faketime, and pgbouncer for the second way. # case H5, # case I2"""
    judge(await chaos(tmp_path, pooler=way == "pooler", runs=500, workers=4, skews=SKEWS))


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        judge(asyncio.run(chaos(Path(folder), pooler="pooler" in sys.argv, runs=int(sys.argv[1]), workers=int(sys.argv[2]), skews=SKEWS)))
