"""Tables and progress bars for the terminal (Rich, imported only when something is shown)."""

from cmdpkit.report.insight import diagnosis_report, diagnosis_table, frontier_report, frontier_table, surface_table
from cmdpkit.report.progress import progress_watcher, tracker, training_display
from cmdpkit.report.results import (
    certificate_report,
    comparison_table,
    long_run_differences,
    plain,
    result_report,
    result_text,
)
from cmdpkit.report.training import episodes_report, training_report, training_text

__all__ = [
    "certificate_report",
    "comparison_table",
    "diagnosis_report",
    "diagnosis_table",
    "episodes_report",
    "frontier_report",
    "frontier_table",
    "long_run_differences",
    "plain",
    "progress_watcher",
    "result_report",
    "result_text",
    "surface_table",
    "tracker",
    "training_display",
    "training_report",
    "training_text",
]
