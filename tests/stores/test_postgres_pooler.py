"""Behind PgBouncer in transaction mode, with the one setting that it needs."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_postgres_conformance import PostgresKit

from perdure.core.errors import ConfigurationError
from perdure.stores import Store
from perdure.stores.postgres import PostgresStore
from perdure.testing.conformance import Kit, StoreConformance
from perdure.testing.conformance._bench import Bench, new_run
from perdure.testing.postgres import PostgresServer

pytestmark = pytest.mark.nightly  # needs the `pgbouncer` program, and is the whole conformance kit once more

SETTINGS = """
[databases]
postgres = host={server} dbname=postgres user=postgres pool_size=4

[pgbouncer]
listen_addr =
unix_socket_dir = {folder}
auth_type = any
pool_mode = transaction
max_client_conn = 200
logfile = {folder}/log
pidfile = {folder}/pid
"""


@pytest.fixture(scope="module")
def pooled(postgres: PostgresServer) -> Iterator[str]:
    """The address of a pooler before the server."""
    folder = Path(tempfile.mkdtemp(prefix="perdure-pgbouncer-"))
    folder.chmod(0o777)
    settings = folder / "settings.ini"
    settings.write_text(SETTINGS.format(server=postgres.folder, folder=folder))
    user = "embedded_postgres" if os.geteuid() == 0 else None
    pooler = subprocess.Popen(["pgbouncer", "-q", str(settings)], user=user, stderr=subprocess.DEVNULL)
    _listening(folder / ".s.PGSQL.6432", pooler)
    yield f"postgresql://postgres@/postgres?host={folder}&port=6432"
    pooler.terminate()
    pooler.wait(20)
    shutil.rmtree(folder, ignore_errors=True)


def _listening(path: Path, pooler: subprocess.Popen[bytes]) -> None:
    """Until it takes connections."""
    while pooler.poll() is None:
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(str(path))
            except OSError:
                continue
            return
    raise AssertionError("PgBouncer has ended")


class PooledKit(PostgresKit):
    """Every handle behind the pooler; the clock is moved past it."""

    def __init__(self, dsn: str, pooled: str) -> None:
        super().__init__(dsn)
        self._pooled = pooled

    def open(self) -> Store:
        return PostgresStore(self._pooled, schema=self.schema, pool_max=2, pooler=True)


class TestPooled(StoreConformance):
    """The whole suite."""  # case I2

    @pytest.fixture
    def kit(self, postgres: PostgresServer, pooled: str) -> Iterator[Kit]:
        kit = PooledKit(postgres.dsn, pooled)
        yield kit
        kit.drop()


async def test_the_missing_setting_is_named(postgres: PostgresServer, pooled: str) -> None:
    """Who forgets `pooler=True` behind a pooler is told so, and nothing is written twice."""
    kit = PooledKit(postgres.dsn, pooled)
    try:
        async with PostgresStore(pooled, schema=kit.schema, pool_max=3) as store, PostgresStore(pooled, schema=kit.schema, pool_max=3) as other:
            with pytest.raises(ConfigurationError, match="pooler=True"):
                for at in range(50):
                    await store.admit(new_run(f"a{at}"))
                    await other.admit(new_run(f"b{at}"))
        async with PostgresStore(pooled, schema=kit.schema, pooler=True) as store:
            assert (await Bench(store).run("a0")).seq == 1
    finally:
        kit.drop()
