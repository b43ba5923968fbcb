"""The settings in `conf/`, composed outside `hydra.main`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException


def settings(name: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The config `name`.yaml with `key=value` overrides, as plain dicts and lists.

    Raises:
        ValueError: an override that is malformed or names nothing.
    """
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("braidwork.conf", version_base=None):
            return cast("dict[str, Any]", OmegaConf.to_container(compose(name, list(overrides)), resolve=True))
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(" ".join(str(error).split())) from error
