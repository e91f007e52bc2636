"""The schemas that editors read are of today, fit all of config/, and refuse what is misspelt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fast_yaml
import jsonschema
import pytest

from recollect.settings.loading import names
from recollect.stages import schemas

pytestmark = pytest.mark.usefixtures("in_the_repository")


def schema(group: str) -> Any:
    return json.loads(Path(f"config/schemas/{group}.json").read_text())


def test_the_files_are_what_the_settings_models_say_today() -> None:
    for path, text in schemas.texts().items():
        assert path.read_text() == text, f"{path} is not of today: run `recollect schema`"


@pytest.mark.parametrize("group", ["environments", "methods", "figures", "scales", "claims"])
def test_every_file_of_the_configuration_fits(group: str) -> None:
    check = jsonschema.Draft7Validator(schema(group))
    for name in names(group):
        content = fast_yaml.load(Path(f"config/{group}/{name}.yaml").read_text())
        wrong = [f"{'.'.join(map(str, error.path))}: {error.message[:200]}" for error in check.iter_errors(content)]
        assert not wrong, (name, wrong)
    jsonschema.validate(fast_yaml.load(Path("config/config.yaml").read_text()), schema("config"))


@pytest.mark.parametrize(
    ("group", "content"),
    [
        ("config", "scale: demo\nfigures: headlines\njob_hour: 12"),
        ("environments", "world: tmaze\nevaluation: {episodez: 3}"),
        ("environments", "world: tmaze\nsource: {algorithm: ppo, hyperparameters: {learning_rat: 1}}"),
        ("methods", "algorithm: radt\nhyperparameters: {contxt: 50}"),
        ("methods", "base: radt\nvariants: {wide: {hyperparameters: {network: {widht: 50}}}}"),
        ("figures", "kind: in_context_curve\noptions: {optimun: 1}"),
        ("scales", "methods: {radt: {environments: {procgen: {hyperparameters: {contxt: 3}}}}}"),
        ("claims", "paper: RA-DT\nstatment: none"),
    ],
)
def test_a_misspelt_key_is_refused_wherever_it_stands(group: str, content: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(fast_yaml.load(content), schema(group))
