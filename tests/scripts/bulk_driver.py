"""A bulk job that says in a log which pieces it begins: what the tests start, kill and start again.

python tests/scripts/bulk_driver.py '{"input": …, "output": …, "model": …, "piece_rows": …}' LOG
"""

from __future__ import annotations

import json
import logging
import sys

import bertie


def main() -> None:
    asked, log = json.loads(sys.argv[1]), sys.argv[2]
    logging.basicConfig(filename=log, format="%(name)s: %(message)s")
    logging.getLogger("bertie.bulk").setLevel(logging.INFO)
    report = bertie.bulk(asked.pop("task", "embed"), **asked)
    print(json.dumps({"computed": report.computed, "rows": report.rows, "set_aside": dict(report.set_aside)}))


if __name__ == "__main__":
    main()
