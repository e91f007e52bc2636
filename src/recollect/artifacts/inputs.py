"""What a job is given of what earlier jobs made: files by name, and the device to work on.

Names and files are chosen by the stages (recollect.stages.inputs). This is plumbing: a new input changes no method.
"""

from __future__ import annotations

from pathlib import Path

from recollect.settings.errors import UserError


class Inputs(dict[str, Path]):
    """Name -> path of what a method may read. A name that a method does not use is absent.

    Args:
        device: cpu or cuda.
        files: paths by name; None is as good as absent.
    """

    def __init__(self, *, device: str = "cpu", **files: Path | None) -> None:
        self.device = device
        super().__init__((name, path) for name, path in files.items() if path is not None)

    def need(self, name: str) -> Path:
        """The path of an input that this method cannot do without.

        Raises:
            UserError: it was not given.
        """
        if name not in self:
            raise UserError(f"the method needs the input '{name}'", where=f"--{name}", do="pass its path")
        return self[name]
