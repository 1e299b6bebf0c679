"""Files of a run, for code inside it."""

from __future__ import annotations

from perdure.core.artifact import Artifact
from perdure.core.errors import InvalidTrigger
from perdure.core.limits import ARTIFACT_MAX
from perdure.stores import Store


class RunArtifacts:
    """`current_run().artifacts`: put and get bytes by content."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def put(self, data: bytes, *, media_type: str = "application/octet-stream", filename: str | None = None) -> Artifact:
        """Store bytes once; equal bytes have one id.

        Raises:
            InvalidTrigger: More than `ARTIFACT_MAX` bytes.
        """
        if len(data) > ARTIFACT_MAX:
            raise InvalidTrigger(f"An artifact of {len(data):,} bytes is over the limit of {ARTIFACT_MAX:,} (ARTIFACT_MAX).", field="data")
        return await self._store.put_artifact(data, media_type=media_type, filename=filename)

    async def get(self, artifact_id: str) -> bytes:
        """The bytes. Raises `ArtifactNotFoundError`."""
        return (await self._store.get_artifact(artifact_id))[1]
