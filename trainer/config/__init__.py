"""The configuration of a run: verl's dotted overrides in, frozen dataclasses out.

schema      keys, types, defaults        choices     allowed values
overrides   Hydra's grammar              tree        schema as dotted keys (OmegaConf)
upstream    verl's other keys            releases    which release takes which key
dialects    what a generation means      load        words -> Resolved
batches     batch arithmetic             files       data, models, reward functions
check       all problems of a command    show        text for people
"""

from trainer.config.batches import MicroBatches, micro_batch_sizes
from trainer.config.check import Facts, Report, check, check_command
from trainer.config.dialects import DIALECTS
from trainer.config.load import Resolved, load, resolve
from trainer.config.problems import ConfigErrors, Note, Problem
from trainer.config.schema import Config
from trainer.config.show import (
    config_text,
    fact_lines,
    note_lines,
    print_config,
    print_lines,
    problem_lines,
    report_lines,
    warning_lines,
)

__all__ = [
    "DIALECTS",
    "Config",
    "ConfigErrors",
    "Facts",
    "MicroBatches",
    "Note",
    "Problem",
    "Report",
    "Resolved",
    "check",
    "check_command",
    "config_text",
    "fact_lines",
    "load",
    "micro_batch_sizes",
    "note_lines",
    "print_config",
    "print_lines",
    "problem_lines",
    "report_lines",
    "resolve",
    "warning_lines",
]
