"""`devkit lint` as it is called: what it prints, the record, exit codes, and that it runs nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from devkit import cli
from devkit.lint.records import LintDocument
from tests import documents
from tests.pace import stretched

CLEAN = """python3 -m verl.trainer.main_ppo \\
    actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 \\
    critic.ppo_micro_batch_size_per_gpu=8 \\
    trainer.test_freq=10
"""
WORDS = CLEAN.replace("\\\n", " ").split()


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run.sh"


def test_findings_look_like_a_compilers(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text(CLEAN.replace("test_freq", "tset_freq"))
    assert cli.main(["lint", "run.sh"]) == 1
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines() == [
        "run.sh:6:5: error: trainer.tset_freq is not a key of any release [unknown-key]",
        "    6 |     trainer.tset_freq=10",
        "      |     ^^^^^^^^^^^^^^^^^^^^",
        "   why: Hydra rejects it before anything starts",
        "  hint: did you mean trainer.test_freq?",
        "",
        "run.sh:1: checked as verl-head (no key is specific to an older release)",
        "lint: 1 error",
    ]


def test_the_record_is_of_its_type(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text(CLEAN.replace("test_freq", "tset_freq"))
    assert cli.main(["lint", "run.sh", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    documents.check(document, LintDocument)
    (finding,) = document["findings"]
    assert (finding["rule"], finding["line"], finding["column"], finding["width"]) == ("unknown-key", 6, 5, 20)
    assert (document["errors"], document["warnings"], document["notes"]) == (1, 0, 0)
    assert document["targets"] == [
        {"file": "run.sh", "line": 1, "target": "verl-head", "reason": "no key is specific to an older release"}
    ]


def test_a_clean_script_and_a_clean_command_give_0(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text(CLEAN)
    assert cli.main(["lint", "run.sh"]) == 0
    assert cli.main(["lint", "--", *WORDS]) == 0
    assert cli.main(["lint", "--", "bash", "run.sh"]) == 0
    assert cli.main(["lint", "--", CLEAN]) == 0  # in quotes
    assert capsys.readouterr().out.count("lint: no problems found") == 4


def test_the_page_shows_what_is_printed(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "lint.md").read_text()
    script.write_text(page.partition("```bash\n")[2].partition("```")[0])
    shown = page.partition("$ devkit lint run.sh\n")[2].partition("```")[0]
    assert cli.main(["lint", "run.sh"]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in shown.splitlines() if line not in ("...", *printed)] == []


def test_what_is_no_launch_script_is_not_called_right(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text("echo prepared\n")
    assert cli.main(["lint", "run.sh"]) == 0
    assert "there is no training command in it, so only its shell was checked" in capsys.readouterr().out
    script.with_name("job.py").write_text("print(1)\n")
    assert cli.main(["lint", "job.py"]) == 2
    said = capsys.readouterr().err
    assert "error: job.py is a Python program" in said and "devkit lint -- python job.py" in said


def test_a_command_s_options_are_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lint", "--json", "--", *WORDS, "--json", "trainer.tset_freq=1"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["file"], finding["line"]) == ("command", len(WORDS) + 2)


def test_warnings_and_notes_are_no_errors(script: Path) -> None:
    script.write_text(CLEAN.rstrip() + " $@\n")
    assert cli.main(["lint", "run.sh"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to lint"),
        (["--"], "nothing to lint"),
        (["none.sh"], "none.sh"),
        (["."], "."),
        (["--for", "verl-0.x", "--", "x"], "no such version: verl-0.x"),
        (["--gpu", "abacus", "--", "x"], "no such GPU: abacus"),
        (["--fro", "ours", "--", "x"], "--fro"),
    ],
)
def test_wrong_usage_is_2(script: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lint", *arguments]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("error: ") and message in first
    assert second.startswith("hint: ")


@pytest.mark.parametrize(
    ("version", "rules"),
    [
        ("verl-0.2", {"absent-key"}),  # max_turns; and val_only is added rightly
        ("v0.5", {"absent-key", "added-key"}),
        ("search-r1", set()),
        ("ours", set()),  # both act
    ],
)
def test_keys_are_judged_by_the_version_that_is_named(
    version: str, rules: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(["lint", "--json", "--for", version, "--", *WORDS, "max_turns=4", "+trainer.val_only=False"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert {f["rule"] for f in findings if "max_turns" in f["message"] or "val_only" in f["message"]} == rules


def test_the_gpu_that_is_named_is_estimated_with(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        *WORDS,
        "actor_rollout_ref.model.path=Qwen/Qwen2-7B",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.7",
    ]
    assert cli.main(["lint", "--gpu", "h200", "--", *words]) == 0
    assert cli.main(["lint", "--gpu", "48GB", "--", *words]) == 1
    out = capsys.readouterr().out
    assert "rollout needs 54.6 GB of 48 GB (as asked): engine 0.7 x 48 + actor 7B x 12 B / 8 = 10.5 + critic" in out


def test_a_model_s_own_config_counts_before_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # given a model folder called 7B that holds a model of 28 heads and half a billion parameters
    folder = tmp_path / "model-7B"
    folder.mkdir()
    numbers = {"hidden_size": 896, "num_hidden_layers": 24, "intermediate_size": 4864, "vocab_size": 151936}
    heads = {"num_attention_heads": 14, "num_key_value_heads": 2, "tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(numbers | heads))
    tp = "actor_rollout_ref.rollout.tensor_model_parallel_size=4"
    # when it is linted for small GPUs
    assert cli.main(["lint", "--gpu", "24", "--", *WORDS, f"actor_rollout_ref.model.path={folder}", tp]) == 1
    # then it fits, and its 14 heads can't be dealt to 4 GPUs
    out = capsys.readouterr().out
    assert "does not divide the model's 14 attention heads" in out
    assert "gpu-memory" not in out


def test_a_comment_turns_a_rule_off(script: Path) -> None:
    script.write_text("# devkit-lint: allow=unknown-key,unquoted-arguments\n" + CLEAN.replace("test_freq", "tset_freq"))
    assert cli.main(["lint", "run.sh"]) == 0


def test_nothing_of_a_script_is_run(script: Path) -> None:
    script.write_text("touch a\n$(touch b)\nbash -c 'touch c'\nexport X=`touch d`\n")
    cli.main(["lint", "run.sh"])
    assert {path.name for path in script.parent.iterdir()} == {"run.sh"}


def test_it_loads_no_torch_and_no_ray(script: Path) -> None:
    script.write_text(CLEAN)
    code = "import sys; from devkit.cli import main; main(['lint', 'run.sh']); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=stretched(60), check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.splitlines()[-1].split()}
    assert loaded.isdisjoint({"torch", "ray", "transformers"})


def test_the_entry_loads_none_of_it() -> None:
    code = "import sys; from devkit.cli import main; main(['lint', '--help']); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=stretched(60), check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.splitlines()[-1].split()}
    assert loaded.isdisjoint({"tree_sitter", "yaml", "omegaconf", "trainer"})
