"""What the README's first commands do: a program under `devkit run` in one terminal, every other verb in a second one.

No variable is set, the home folder is empty, ports and folders are the defaults, as a new user has it.
"""

from __future__ import annotations

import stat

import pytest

from tests.hosts.hosts import REPOSITORY, Lan
from tests.walks.terminals import Running, Terminal

pytestmark = pytest.mark.timeout(600)
ROLES = "trainer/roles.py"


def line_of(path: str, text: str) -> int:
    lines = (REPOSITORY / path).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


UPDATE = line_of(ROLES, "return ppo.update(self.actor")
JOB = f"programs/job.py:{line_of('tests/walks/programs/job.py', '@update')}"
VERL = f"programs/verl_main.py:{line_of('tests/walks/programs/verl_main.py', '@update')}"
SMOKES = ("devkit smoke --tiny", "devkit smoke --tiny --keep")


def look_around(terminal: Terminal, where: str) -> None:
    """The verbs that only look: each answers, of this program."""
    listed = terminal.run("devkit ps")
    assert where in listed and "breakpoint" in listed, listed
    assert where.split(":")[0] in terminal.run("devkit stacks")
    assert "1 hit" in terminal.run("devkit break --list")
    assert "no crashes" in terminal.run("devkit crashes")
    assert "paused by the debugger" in terminal.run("devkit hang")


def finish(terminal: Terminal, program: Running) -> None:
    for point in terminal.json("devkit ps")["breakpoints"]:
        assert terminal.run(f"devkit break --clear {point['id']}") == f"cleared {point['id']}\n"
    terminal.run("devkit continue --all")
    assert program.wait() == 0, program.said


def mode_of(terminal: Terminal, path: str) -> int:
    return int(terminal.run(f"stat --format=%f {path}"), 16)


def test_our_trainer(terminal: Terminal) -> None:
    """The flagship, the one walk with a Ray that `make test` has, too."""
    with terminal.running(
        f'devkit run --break "{ROLES}:{UPDATE} @[1]" -- bash ppo/train.sh trainer.total_training_steps=2'
    ) as program:
        [stop] = terminal.stops(program)
        assert (stop["role"], stop["rank"], stop["line"]) == ("PPOWorker", 1, UPDATE)
        look_around(terminal, f"{ROLES}:{UPDATE}")
        assert terminal.run("devkit eval 'len(shares)'") == "rank 1  1\n"
        assert "trainer.main_ppo" in terminal.run("devkit jobs")  # these need the dashboard
        assert "no error was found" in terminal.run("devkit logs --first-error")
        assert "cluster 10.77.0.1:" in terminal.run("devkit doctor")
        for file, kind, allowed in ((".ray/auth_token", stat.S_ISREG, 0o600), (".ray", stat.S_ISDIR, 0o700)):
            mode = mode_of(terminal, file)
            assert kind(mode) and stat.S_IMODE(mode) == allowed, file
        finish(terminal, program)


@pytest.mark.walks
@pytest.mark.parametrize("smoke", SMOKES)
def test_a_smoke_test_which_has_a_token_that_only_its_own_process_knows(terminal: Terminal, smoke: str) -> None:
    with terminal.running(f'devkit run --break "{ROLES}:{UPDATE} @[1]" -- {smoke}') as program:
        [stop] = terminal.stops(program)
        assert (stop["role"], stop["rank"]) == ("PPOWorker", 1)
        look_around(terminal, f"{ROLES}:{UPDATE}")
        assert "runs without a dashboard" in terminal.try_("devkit jobs").stderr
        record = terminal.run("echo .cache/devkit/runs/run-*.json").strip()
        assert stat.S_IMODE(mode_of(terminal, record)) == 0o600  # the token stands in it
        terminal.run(f"kill -INT {record.removeprefix('.cache/devkit/runs/run-').removesuffix('.json')}")
        assert program.wait() == 130, program.said
    assert terminal.run("find .ray .cache/devkit/runs -type f 2>/dev/null || true") == ""  # and it goes with the run


@pytest.mark.walks
def test_a_program_of_verls_shape(terminal: Terminal) -> None:
    with terminal.running(
        f"devkit run --break '{VERL} @ActorRolloutRefWorker[0]' -- python programs/verl_main.py"
    ) as program:
        terminal.stops(program)
        look_around(terminal, VERL)
        assert terminal.run("devkit eval 'self.rank, step'") == "rank 0  (0, 0)\n"
        assert stat.S_IMODE(mode_of(terminal, ".ray/auth_token")) == 0o600  # Ray made it, for everybody to read
        finish(terminal, program)


@pytest.mark.walks
def test_a_ray_without_a_dashboard(terminal: Terminal) -> None:
    never = f"programs/job.py:{line_of('tests/walks/programs/job.py', 'never')}"
    words = f"devkit run --break '{JOB} @Worker[1]' --break {never} -- python programs/job.py --no-dashboard"
    with terminal.running(words) as program:
        terminal.stops(program)
        look_around(terminal, JOB)
        assert "cluster 10.77.0.1:" in terminal.run("devkit doctor")
        finish_all_but_the_last(terminal, program)
    assert f"devkit: never hit: {never}" in program.said  # though the hub has gone with the program


@pytest.mark.walks
def test_two_programs_at_once(terminal: Terminal) -> None:
    """Each has a Ray of its own, of which the second one does not get Ray's fixed ports."""
    words = f"devkit run --break '{JOB} @Worker[1]' -- python programs/job.py"
    with terminal.running(words) as first:
        terminal.stops(first)
        with terminal.running(words) as second:
            second.says("look at it with: devkit ps ")
            named = second.says("\n").strip()
            assert named == "--address http://127.0.0.1:8266"
            terminal.stops(second, where=named)
            terminal.run(f"devkit break --clear all {named}")
            terminal.run(f"devkit continue --all {named}")
            assert second.wait() == 0, second.said
        terminal.stops(first)
        finish(terminal, first)


@pytest.mark.walks
@pytest.mark.parametrize("smoke", SMOKES)
def test_the_editors_view_which_is_open_before_either_program_is(terminal: Terminal, smoke: str) -> None:
    """The command that the VS Code extension keeps running, in an editor that has been given no token."""
    with terminal.running("devkit ps --watch --wait --json") as view:
        with terminal.running(f"devkit run --break '{JOB} @Worker[1]' -- python programs/job.py") as program:
            view.says('"reason": "breakpoint"')
            finish(terminal, program)
        with terminal.running(f'devkit run --break "{ROLES}:{UPDATE} @[1]" -- {smoke}') as program:
            view.says('"role": "PPOWorker"')
            assert view.process.poll() is None and program.process.poll() is None


def finish_all_but_the_last(terminal: Terminal, program: Running) -> None:
    [point] = [each["id"] for each in terminal.json("devkit ps")["breakpoints"] if each["hits"]]
    terminal.run(f"devkit break --clear {point}")
    terminal.run("devkit continue --all")
    assert program.wait() == 0, program.said


@pytest.mark.walks
def test_a_submitted_job_on_a_debug_cluster(terminal: Terminal) -> None:
    terminal.run("devkit debug-cluster")
    with terminal.running(f"devkit submit --break '{JOB} @Worker[1]' -- python programs/job.py") as program:
        [stop] = terminal.stops(program)
        assert (stop["role"], stop["rank"]) == ("Worker", 1)
        look_around(terminal, JOB)
        stacks = terminal.run("devkit stacks")
        assert "driver" in stacks and "JobSupervisor" not in stacks
        finish(terminal, program)
        assert "[[0.0, 1.0], " in program.said
    assert "SUCCEEDED" in terminal.run("devkit jobs")
    terminal.run("devkit debug-cluster stop")


BAD = "def compute_score(data_source, solution_str, ground_truth, **_):\n    raise ValueError('no such answer')\n"


@pytest.mark.walks
def test_our_trainer_with_paths_of_its_own_folder_on_a_debug_cluster_of_another(terminal: Terminal) -> None:
    printed = terminal.run("devkit debug-cluster")
    [export] = [line.strip() for line in printed.splitlines() if "export RAY_ADDRESS=" in line]
    terminal.run(f"cat > ppo/bad.py <<'END'\n{BAD}END")
    paths = "actor_rollout_ref.model.path=model custom_reward_function.path=bad.py trainer.default_local_dir=out"
    with terminal.running(f"bash -c '{export} && cd ppo && exec bash train.sh trainer.save_freq=1 {paths}'") as program:
        said = program.says("): devkit attach")  # all that a user sees who has not read that a debug cluster pauses
        assert f"results go to {terminal.home}/ppo/out/metrics.jsonl" in said
        assert " is stopped at trainer/rewards/" in said
        assert f"raised ValueError: no such answer at {terminal.home}/ppo/bad.py:2" in said
        terminal.stops(program)
        while program.process.poll() is None:  # the other rank's stop may come later
            terminal.try_("devkit continue --all")
        assert program.wait() == 1 and "no such answer" in program.said
    [stop] = [line.removeprefix("Stop it:") for line in printed.splitlines() if line.startswith("Stop it:")]
    assert "stopped head-6379" in terminal.run(stop.strip())


TRAIN = "bash ppo/train.sh trainer.nnodes=2 trainer.n_gpus_per_node=1 trainer.total_training_steps=2"
TWO_MACHINES = {  # how it is started, where its two ranks stop, their role, how each knows its rank, CPUs of a machine
    "program": ("run", "python programs/job.py", JOB, "Worker", "self.rank", 2),
    "trainer": ("run", TRAIN, f"{ROLES}:{UPDATE}", "PPOWorker", "self.seat.rank", 1),
    "verl": ("run", "python programs/verl_main.py 2", VERL, "ActorRolloutRefWorker", "self.rank", 2),
    "submit": ("submit", "python programs/job.py", JOB, "Worker", "self.rank", 2),
}


@pytest.mark.walks
def test_a_smoke_test_of_two_nodes(terminal: Terminal) -> None:
    """Both are on this machine, and the token is known to its process alone."""
    two = "trainer.nnodes=2 trainer.n_gpus_per_node=1"
    with terminal.running(f'devkit run --break "{ROLES}:{UPDATE}" -- devkit smoke --tiny {two}') as program:
        stops = terminal.stops(program, 2)
        assert {(each["role"], each["rank"]) for each in stops} == {("PPOWorker", 0), ("PPOWorker", 1)}
        listed = terminal.run("devkit ps")
        assert listed.count(f"{ROLES}:{UPDATE}") >= 2, listed
        assert "PPOWorker ranks 0,1  stopped by devkit" in terminal.run("devkit stacks")
        assert terminal.run("devkit eval self.seat.rank") == "rank 0  0\nrank 1  1\n"
        assert "no crashes" in terminal.run("devkit crashes")


@pytest.mark.walks
@pytest.mark.parametrize(("verb", "command", "where", "role", "rank", "cpus"), TWO_MACHINES.values(), ids=TWO_MACHINES)
def test_two_machines_and_a_terminal_on_each(
    lan: Lan, verb: str, command: str, where: str, role: str, rank: str, cpus: int
) -> None:
    here, there = Terminal(lan[0]), Terminal(lan[1])
    here.run(f"ray start --head --num-cpus {cpus}")
    there.run(f"ray start --address=10.77.0.1:6379 --num-cpus {cpus}")
    debug_from_both(here, there, f"devkit {verb} --break '{where}' -- {command}", where, role, rank)


@pytest.mark.walks
@pytest.mark.parametrize("kind", ["trainer", "verl"])
def test_two_machines_whose_ray_asks_for_a_token_and_a_terminal_on_each(lan: Lan, kind: str) -> None:
    """As docs/clusters.md has it; the token lies where Ray keeps it, and nobody sets a variable."""
    _, command, where, role, rank, cpus = TWO_MACHINES[kind]
    here, there = Terminal(lan[0]), Terminal(lan[1])
    page = here.run(f"devkit debug-cluster --dashboard-host 0.0.0.0 --num-cpus {cpus}")
    assert "required (yours:" in page, page
    token = here.run("cat .ray/auth_token").strip()
    there.run(f"mkdir -m 700 .ray && umask 077 && echo {token} > .ray/auth_token")
    there.run(f"devkit debug-cluster --join 10.77.0.1:6379 --auth token --num-cpus {cpus}")
    debug_from_both(here, there, f"devkit run --break '{where}' -- {command}", where, role, rank)
    # and who has no token is refused, on either machine
    for terminal in (here, there):
        terminal.run("mv .ray .ray-elsewhere")
        refused = terminal.try_("devkit ps --address http://10.77.0.1:8265")
        assert refused.returncode == 3 and "token" in refused.stderr, refused


def debug_from_both(here: Terminal, there: Terminal, run: str, where: str, role: str, rank: str) -> None:
    """The verbs, in a shell on each machine, of a program that stops in a rank on each."""
    with here.running(run) as program:
        ids = {stop["rank"]: stop["id"] for stop in here.stops(program, 2)}
        for terminal in (here, there):
            listed, _, _ = terminal.run("devkit ps").partition("\nbreakpoints\n")
            assert listed.count(where) == 2 and all(each.host.ip in listed for each in (here, there)), listed
            assert f"{role} ranks 0,1  stopped by devkit" in terminal.run("devkit stacks")
            assert terminal.run(f"devkit eval {rank}") == "rank 0  0\nrank 1  1\n"
        assert there.run("devkit break --clear all").startswith("cleared ")
        assert here.run(f"devkit continue {ids[0]}") == "continued: rank 0\n"
        assert there.run("devkit continue --all") == "continued: rank 1\n"
        assert program.wait() == 0, program.said
