"""Imported by every Python process of test_kills.py: kills it with SIGKILL as soon as it reaches the stage in KILL_AT.

Stages of the worker are those that it records with its progress. `mine` is just before the mined examples are stored.
"""

import os
import signal

KILL_AT = os.environ.get("KILL_AT")

if KILL_AT:
    from mnemorank.learning.runs import RunStore
    from mnemorank.learning.store import examples

    write_progress, replace_examples = RunStore.write_progress, examples.replace_examples

    def write_progress_or_die(self, run_id, progress):
        write_progress(self, run_id, progress)
        if progress["stage"] == KILL_AT:
            os.kill(os.getpid(), signal.SIGKILL)

    def replace_examples_or_die(*arguments, **options):
        if KILL_AT == "mine":
            os.kill(os.getpid(), signal.SIGKILL)
        return replace_examples(*arguments, **options)

    RunStore.write_progress = write_progress_or_die
    examples.replace_examples = replace_examples_or_die
