"""Finished runs as one HTML file that needs nothing else."""

from diffsparse.report.page import render_report, write_report

__all__ = ["render_report", "write_report"]
