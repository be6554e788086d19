"""`Gateway`: the models of one data directory; it creates, finds, deletes and stops them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jormungandr.errors import DataDirError, Draining, InvalidValue, ModelConflict, ModelUnknown
from jormungandr.service.child.places import Places
from jormungandr.service.child.process import PARK_AFTER
from jormungandr.service.datadir import DataDir
from jormungandr.service.journal.space import FREE_SPACE_FLOOR, FreeSpace
from jormungandr.service.journal.writer import Journal
from jormungandr.service.load.lanes import Lanes
from jormungandr.service.load.limits import Limits
from jormungandr.service.model import Model
from jormungandr.service.observe.meters import Meters
from jormungandr.service.retention import Keeping
from jormungandr.spec import MODEL_ID, ModelSpec

__all__ = ["Gateway"]


class Gateway:
    """The state behind the routes; lives on one event loop.

    Args:
        data_dir: where everything is kept.
        free_space_floor: bytes below which no data is taken; 0 sets no floor.
        park_after: seconds of idleness after which the learner process of a model ends.
        keeping: how much is kept of each model.
        meters: count what is done; None counts for nobody.
        limits: how much is taken on.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        free_space_floor: int = FREE_SPACE_FLOOR,
        park_after: float = PARK_AFTER,
        keeping: Keeping = Keeping(),  # noqa: B008 - frozen
        meters: Meters | None = None,
        limits: Limits = Limits(),  # noqa: B008 - frozen
    ) -> None:
        self._data_dir, self._park_after, self._keeping = data_dir, park_after, keeping
        self._space = FreeSpace(data_dir, free_space_floor)
        self._meters = meters or Meters()
        self._limits, self.lanes = limits, Lanes(limits.rate)
        self._places = Places(limits.max_learners)
        self._models: dict[str, Model] = {}
        #: Of deleted and living models: the last generation, and the highest version ever
        #: published.
        self._past: dict[str, tuple[int, int]] = {}
        self._directory: DataDir | None = None
        self._creating = asyncio.Lock()
        self.state = "starting"

    async def start(self) -> None:
        """Lock the directory and bring every model back to where it was.

        Raises:
            DataDirError: the directory is locked or damaged.
        """
        self._directory = DataDir(self._data_dir)
        for folder, journal in self._directory.journals():
            created, highest = journal.created, journal.deleted()
            generation, version = self._past.get(created.model_id, (0, -1))
            if highest is not None:
                self._past[created.model_id] = (
                    max(generation, created.generation),
                    max(version, highest),
                )
                journal.close()
                continue
            if created.model_id in self._models:
                raise DataDirError(
                    str(folder), f"one living generation of {created.model_id!r}", "another one too"
                )
            self._past[created.model_id] = (max(generation, created.generation), version)
            self._models[created.model_id] = self._model(folder, journal)
        self.state = "ready"

    def _model(self, folder: Path, journal: Journal) -> Model:
        return Model(
            folder,
            journal,
            self._space,
            self._keeping,
            park_after=self._park_after,
            meters=self._meters,
            lanes=self.lanes,
            places=self._places,
        )

    async def drain(self) -> None:
        """Refuse what is new and have checkpoints written; policies and figures are still there."""
        self.state = "draining"
        await asyncio.gather(*(model.drain() for model in self._models.values()))

    async def stop(self) -> None:
        """Drain, finish the rest, and let go of the directory."""
        await self.drain()
        await asyncio.gather(*(model.stop() for model in self._models.values()))
        self.lanes.close()
        if self._directory is not None:
            self._directory.close()
        self.state = "stopped"

    def find(self, model_id: str) -> Model | None:
        """Return a model; None where there is none of that id."""
        return self._models.get(model_id)

    def model(self, model_id: str) -> Model:
        """Return a model.

        Raises:
            ModelUnknown: there is none of that id.
        """
        found = self._models.get(model_id)
        if found is None:
            raise ModelUnknown("model_id", "a model that exists", repr(model_id), "create it first")
        return found

    def models(self) -> list[dict[str, Any]]:
        """Return the figures of every model."""
        return [model.info() for _, model in sorted(self._models.items())]

    async def create(self, model_id: str, spec: Mapping[str, Any]) -> tuple[bool, Model]:
        """Create a model; return whether it is new.

        For one that exists, every field given must equal the stored one; omitted ones match
        anything.

        Raises:
            InvalidValue: an id or a spec that is not acceptable.
            ModelConflict: it exists with another specification.
            ModelQuota: there are as many models, or as large ones, as the service takes.
            StorageFull: there is no room for one more.
        """
        if MODEL_ID.fullmatch(model_id) is None:
            raise InvalidValue("model_id", f"to match {MODEL_ID.pattern}", repr(model_id))
        async with self._creating:
            if self._directory is None or self.state != "ready":
                raise Draining("service", "a service that is ready", self.state)
            existing = self._models.get(model_id)
            if existing is not None:
                paths = existing.spec.mismatches(spec)
                if paths:
                    raise ModelConflict(
                        "spec",
                        "the specification the model was created with",
                        f"differences at {', '.join(paths)}",
                        "use another id, or delete the model and all it learned from",
                    )
                return False, existing
            resolved = ModelSpec.from_dict(spec)
            self._limits.check([model.spec for model in self._models.values()], resolved)
            self._space.check()
            generation, highest = self._past.get(model_id, (0, -1))
            folder, journal = await asyncio.get_running_loop().run_in_executor(
                None, self._directory.create, model_id, generation + 1, highest + 1, resolved
            )
            self._past[model_id] = (generation + 1, highest)
            self._models[model_id] = self._model(folder, journal)
            return True, self._models[model_id]

    async def delete(self, model_id: str) -> None:
        """Delete a model and what it learned from; its version numbers are never used again."""
        async with self._creating:
            model = self.model(model_id)
            await model.delete()
            del self._models[model_id]
            self._meters.forget(model_id)
            # Not before: a policy that was on its way may have been published meanwhile.
            self._past[model_id] = (model.generation, model.published_version)
