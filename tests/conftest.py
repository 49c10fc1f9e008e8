"""Fixtures of the tests in a real browser, and a plain word where they were not run."""

import pytest

from browsing import FLAGS, NOT_RUN, find_chromium, watched_page


@pytest.fixture(scope="session")
def browser():
    program = find_chromium()
    if program is None:
        pytest.skip(NOT_RUN)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield found
        found.close()


@pytest.fixture
def page(browser):
    with watched_page(browser) as found:
        yield found


def pytest_terminal_summary(terminalreporter):
    """A skipped test is easily overlooked."""
    skipped = [report for report in terminalreporter.stats.get("skipped", ()) if NOT_RUN in str(report.longrepr)]
    if skipped:
        terminalreporter.section("browser tests were not run")
        terminalreporter.line(f"{len(skipped)} tests in a real browser were NOT RUN: {NOT_RUN}")
