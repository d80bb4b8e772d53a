"""A pytest plugin that writes the result of each test to the file REPORT_FILE, one line of JSON each."""

import json
import os


def pytest_runtest_logreport(report):
    if report.when != "call" and report.outcome == "passed":
        return
    crash = getattr(report.longrepr, "reprcrash", None)
    message = crash.message if crash else str(report.longrepr or "")
    with open(os.environ["REPORT_FILE"], "a", encoding="utf-8") as file:
        row = {"name": report.nodeid, "outcome": report.outcome, "message": message[:2_000]}
        file.write(json.dumps(row) + "\n")
