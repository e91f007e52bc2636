"""Parts of the agent that a user's own file can take the place of: encoders of time steps, of trajectories, exploration.

The file declares the class and `Options`, as `recollect.settings.catalogue.KINDS` says; the setting that names one of ours
names the file instead, and `options` beside it are the file's. The class is made with the arguments of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, Field, model_validator

from recollect.settings.catalogue import KINDS, known, load, unfinished
from recollect.settings.errors import UserError, nearest
from recollect.settings.loading import validated
from recollect.settings.schema import Frozen


class Replaceable(Frozen):
    """Settings of such a part. `PART` is its kind in the catalogue, `OURS` are the names of our own classes."""

    PART: ClassVar[str]
    OURS: ClassVar[tuple[str, ...]]

    options: Any = Field(None, description="Of a class of your own, see docs/adding.md.")

    @model_validator(mode="before")
    @classmethod
    def _own(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        setting, key = cls._named_by()
        name, given = values.get(key), values.get("options")
        where = f"hyperparameters: {setting}"
        theirs = known(cls.PART) if isinstance(name, str) else {}
        if name is None or name in cls.OURS:
            if name in theirs:
                raise UserError(f"'{name}' is one of ours", where=theirs[str(name)], do="give the file another name")
            if given is not None:
                do = f"leave them out, or name a file of yours as {setting}"
                raise UserError(f"'{name or 'the default'}' has no options", where=where, do=do)
            return values
        if not isinstance(name, str):
            return values  # pydantic says what is wrong
        if name not in theirs:
            do = unfinished(cls.PART, name) or nearest(name, (*cls.OURS, *theirs))
            raise UserError(f"no {cls.PART} named '{name}'", where=where, do=do)
        options = given.model_dump() if isinstance(given, BaseModel) else given or {}
        model = load(cls.PART, name, where=where).Options
        return {**values, "options": validated(model, options, where=f"options of {theirs[name]}", noun="option")}

    @classmethod
    def _named_by(cls) -> tuple[str, str]:
        """The setting that names the class, in full and its own key."""
        setting = KINDS[cls.PART].named_by
        return setting, setting.rpartition(".")[2]

    def own(self) -> Any:
        """The module that has the user's class; None where the class is one of ours."""
        setting, key = self._named_by()
        name = getattr(self, key)
        return None if name in self.OURS else load(self.PART, name, where=setting)
