"""The registry of studies, in the order of the report. A new one is a module with a `STUDY` and a line here."""

from __future__ import annotations

from . import (
    gcn_epoch,
    gcn_training,
    model_epochs,
    scipy_formats,
    selector_quality,
    selector_runs,
    spmm_speed,
)
from .study import Study

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        gcn_training.STUDY, gcn_epoch.STUDY, model_epochs.STUDY, selector_quality.STUDY, selector_runs.STUDY,
        scipy_formats.STUDY, spmm_speed.STUDY,
    )
}  # fmt: skip
