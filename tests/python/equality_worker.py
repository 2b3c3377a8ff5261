"""Cases that train one network with nearstep and a copy in memory with torch.optim, on every rank.

    equality_worker.py FOLDER CASE...

The copy gets all ranks' shares of a batch, this rank's network only its own. Each rank writes
FOLDER/results-RANK.jsonl. On several ranks a failed case ends the run, because the ranks would no longer be in step.
"""

import faulthandler
import json
import sys
import time
import traceback

import architecture_cases
import rank_cases
import update_cases
from in_memory import FOLDER, RANK, RANKS

CASES = vars(architecture_cases) | vars(rank_cases) | vars(update_cases)


def main():
    with open(FOLDER / f"results-{RANK}.jsonl", "w") as results:
        for name in sys.argv[2:]:
            failure = ""
            print(f"case {name}", flush=True)
            faulthandler.dump_traceback_later(180, exit=True)  # says where
            began = time.process_time()
            try:
                CASES[name]()
            except Exception:
                failure = traceback.format_exc()
            seconds = time.process_time() - began
            results.write(json.dumps({"name": name, "failure": failure, "seconds": seconds}) + "\n")
            results.flush()
            if failure and RANKS > 1:
                sys.exit(failure)


main()
