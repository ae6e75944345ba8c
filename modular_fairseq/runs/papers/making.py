"""Make the runs of tables: here, several at a time, or as steps, each by a job of its own."""

import argparse
import os
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from modular_fairseq.runs.cluster.jobs import Step, share_job, through_srun
from modular_fairseq.runs.cluster.resources import Resources
from modular_fairseq.runs.evaluation import Measurement
from modular_fairseq.runs.run import Run
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.processes import say, share_processors

Work = list[tuple[Run, list[Measurement]]]  # runs with their measurements; a run comes after its start


def make(work: Work, jobs: int) -> list[str]:
    """Finish runs, several at a time, and report progress on standard error.

    If the user presses Ctrl-C, this process and the commands that it has started end at once, with exit code
    130.

    Args:
        work: the runs.
        jobs: the number of runs at a time.

    Returns:
        A sentence for each run that failed. The other runs are finished nevertheless.

    Raises:
        UsageError: a corpus is missing, or a folder holds another run. This is checked before anything runs.
    """
    check(work)
    for run, _ in work:
        run.forget_failure()
    done: dict[str, Future[str | None]] = {}

    def finish(number: int, each: Run, measurements: list[Measurement]) -> str | None:
        """Finish a run; return a sentence if it failed."""
        try:
            if isinstance(each.start, Run) and done[each.start.folder].result():
                return f"{each.name} cannot be fine-tuned from {each.start.name}, which failed"
            with each.noting_failure():
                each.train(say)
                measure(measurements, f"[{number} of {len(work)}] {each.name}")
        except (UsageError, OSError) as error:
            failure = name_failure(each.name, error)
            say(failure)
            return failure
        except BaseException:
            # This is a fault of the program itself, so the queued runs would fail, too.
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return None

    share_processors(jobs)
    pool = ThreadPoolExecutor(jobs)
    try:
        for number, (each, measurements) in enumerate(work, 1):
            done[each.folder] = pool.submit(finish, number, each, measurements)
        return [failure for future in done.values() if (failure := future.result())]
    except KeyboardInterrupt:
        print("\nstopped; the same command continues from here", file=sys.stderr, flush=True)
        os._exit(130)  # sys.exit would wait until the commands that are running have ended


def check(work: Work) -> None:
    """Raise UsageError if a corpus lacks what a run or a measurement needs, or a folder holds another run."""
    for each, measurements in work:
        each.check()
        for measurement in measurements:
            measurement.check()


def measure(measurements: list[Measurement], label: str) -> None:
    """Make the measurements of a run that has been trained, and report their results on standard error.

    Raises:
        UsageError: a measurement failed.
    """
    for measurement in measurements:
        measurement.finish(say)
        for evaluation in measurement.evaluations:
            column = evaluation.columns[evaluation.key]
            result = measurement.finished_result()[evaluation.key]
            value = "none" if result is None else column.pattern.format(result)
            say(f"{label}: {measurement.subset} {column.heading} {value}")


def name_failure(name: str, error: Exception) -> str:
    """Return the message of an error with the name of the run before it, unless it begins with that name."""
    message = str(error)
    # Most errors name the run already. What follows the name matters: a/seed-1 is not a/seed-10.
    return message if message.startswith((f"{name}:", f"{name} ")) else f"{name}: {message}"


def steps(
    work: Work,
    command: Callable[..., list[str]],
    table: str,
    resources: tuple[Resources, Resources],
) -> list[Step]:
    """Return the steps of the work: for each run its training, and its evaluation for a table.

    Args:
        work: the runs.
        command: returns the words of the table's command with some further options.
        table: the name of the table. Several tables may have a run in common.
        resources: what trainings and what evaluations ask for.
    """
    training, evaluation = resources
    found = []
    for run, measurements in work:
        needs = [_training_of(run.start)] if isinstance(run.start, Run) else []
        if run.trains:
            options = ["--train-run", run.name, *training.gpus_option, *training.srun]
            done = run.training is not None
            log = run.path("train.log")
            found.append(Step(_training_of(run), run.folder, command(*options), training, needs, done, log))
            needs = [_training_of(run)]
        if measurements:
            name, words = f"evaluate {run.name} for {table}", command("--measure-run", run.name)
            done = all(each.result is not None for each in measurements)
            found.append(Step(name, run.folder, words, evaluation, needs, done))
    return found


def _training_of(run: Run) -> str:
    """Return the name of the step that trains a run."""
    return f"train {run.name}"


def make_step(work: Work, args: argparse.Namespace) -> None:
    """Do the work of a step, in its job.

    Args:
        work: the runs.
        args: `train_run` is the name of the run to train, or None; then `measure_run` is the name of the run
            to measure. `srun` tells whether srun starts the workers of the training.

    Raises:
        UsageError: the run failed, or a run that the step needs is not finished.
    """
    name = args.train_run or args.measure_run
    found = next((each for each in work if each[0].name == name), None)
    if found is None:
        raise UsageError(
            f"{args.table}: there is no run {name} any more; restore its row, or cancel the jobs of this "
            "table and submit them again"
        )
    run, measurements = found
    share_job(1 if args.srun else run.workers or 1)  # the workers of srun may be on several machines
    with run.noting_failure():
        if args.train_run:
            if isinstance(run.start, Run) and run.start.training is None:
                raise UsageError(
                    f"{name} starts from {run.start.name}, which is not finished; train it first"
                )
            (through_srun(run) if args.srun else run).train(say)
            return
        if not run.trains:
            run.train(say)
        if run.training is None:
            raise UsageError(f"{name} is not trained yet, so it cannot be measured; train it first")
        measure(measurements, name)
