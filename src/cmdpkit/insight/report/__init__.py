"""Reports: one HTML file that works offline."""

from cmdpkit.insight.report.write import write_report

__all__ = ["write_report"]
