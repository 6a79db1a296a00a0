"""Scripts read as text: values as bash gives them, worked by hand, and what stays unknown."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import ConfigError
from simulator.importing.shell_script import Script, read_script
from simulator.importing.text_pieces import is_known, plain


def words(script: str, **environment: str) -> list[str]:
    """Words of the last command, unknown ones marked."""
    return shown(read_script(script, "x.sh", environment))[-1]


def shown(script: Script) -> list[list[str]]:
    return [
        [plain(word) if is_known(word) else f"?{plain(word)}" for word in command.words]
        for command in script.commands
    ]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("A=1\nrun $A ${A}0", ["run", "1", "10"]),
        ('A="1 2"\nrun $A "$A"', ["run", "1", "2", "1 2"]),
        ("run ${X:-8} ${X-9}", ["run", "8", "9"]),
        ("X=\nrun ${X:-8} ${X-9} end", ["run", "8", "end"]),
        ("run ${X:=4} $X", ["run", "4", "4"]),
        ("X=1\nrun ${X:+yes} ${Y:+no} end", ["run", "yes", "end"]),
        ("G=8; N=4\nrun $(($G*N)) $((7/2)) $((-7/2)) $((2**10))", ["run", "32", "3", "-3", "1024"]),
        ("TP=8\nrun $(( ($TP > 1) ? 1 : 0 ))", ["run", "1"]),
        ("A=(--a 1 # c\n --b\n)\nrun ${A[@]}", ["run", "--a", "1", "--b"]),
        ('A=("x y" z)\nrun "${A[@]}"', ["run", "x y", "z"]),
        ('A=("x y" z)\nrun ${A[@]}', ["run", "x", "y", "z"]),
        ("A=(p q r)\nrun ${A[1]} ${#A[@]}", ["run", "q", "3"]),
        ("A=(p)\nA+=(q r)\nrun ${A[*]}", ["run", "p", "q", "r"]),
        ("declare -A M=([tp]=4 [pp]=2)\nrun ${M[tp]}", ["run", "4"]),
        ('S="--a 1"\nS+=" --b"\nrun $S', ["run", "--a", "1", "--b"]),
        ('S=" \\\n  --a 1 \\\n  --b"\nrun $S', ["run", "--a", "1", "--b"]),
        ('B=x\nS="$B $B"\nrun "$S"', ["run", "x x"]),
        ("N=7B_chat\nrun ${N%%_*} ${N/7B/8B} ${N,,}", ["run", "7B", "8B_chat", "7b_chat"]),
        ("A=B\nB=5\nrun ${!A}", ["run", "5"]),
        ("export A=1 B=2\nrun $A$B", ["run", "12"]),
        ("run $(expr 8 \\* 4) `echo hi`", ["run", "32", "hi"]),
        ("let \"Z = 3 + 4\"\nrun $Z", ["run", "7"]),
        ("run 'a b' \"\" end", ["run", "a b", "", "end"]),
        ('run "$@" end', ["run", "end"]),
        ("run a \\\n  b", ["run", "a", "b"]),
        ("for i in 1 2; do X+=$i; done\nrun $X", ["run", "12"]),
        ("f() { X=$1; }\nf hi\nrun $X", ["run", "hi"]),
        ("case 13B in 7b) L=1;; 1*|x) L=2;; *) L=3;; esac\nrun $L", ["run", "2"]),
        ("X=1\nunset X\nrun ${X:-none}", ["run", "none"]),
    ],
)  # fmt: skip
def test_values(script: str, expected: list[str]) -> None:
    assert words(script) == expected


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ('[ "a" = "a" ]', True),
        ("[[ fp8 == fp* ]]", True),
        ("[ 4 -gt 8 ]", False),
        ("[ -z $NOTHING ]", True),
        ('[ -n "${NOTHING}" ]', False),
        ("[[ a = a && 1 -eq 2 ]]", False),
        ("[ a = b ] || [ 3 -le 3 ]", True),
        ("! [ a = b ]", True),
        ("(( 3 > 2 ))", True),
        ("[[ v1.5 =~ ^v1 ]]", True),
        ("[ -f some/file ]", False),
        ('[ "$(hostname)" = a ]', False),
    ],
)
def test_conditions(condition: str, holds: bool) -> None:
    script = f"if {condition}; then X=yes; else X=no; fi\nrun $X"
    assert words(script) == ["run", "yes" if holds else "no"]


def test_unknown_conditions_are_told() -> None:
    script = read_script("\nif [ -f x ]; then run 1; fi", "x.sh")
    assert script.commands == ()
    assert [(note.line, note.message) for note in script.notes] == [
        (2, "not known, taken as false: [ -f x ]")
    ]


def test_a_branch_that_leaves_the_script_is_passed_over() -> None:
    script = read_script("if [ ! -f x ]; then\n exit 1\nfi\nrun", "x.sh")
    assert shown(script) == [["run"]]
    assert script.notes == ()


def test_unknown_values_keep_their_names() -> None:
    line = 'S="--save $OUT/x --n 4"\nrun $S $(date) ${Q}'
    assert words(line) == ["run", "--save", "?$OUT/x", "--n", "4", "?$(date)", "?${Q}"]


def test_environment_and_arguments_of_the_script() -> None:
    assert words("run ${N:-1} $1", N="4", **{"1": "7b"}) == ["run", "4", "7b"]


def test_strings_that_are_scripts() -> None:
    script = 'C="train.py --a 1"\nsrun -N 4 bash -c "python \\$R $C" | tee log'
    assert shown(read_script(script, "x.sh"))[1] == ["python", "?$R", "train.py", "--a", "1"]
    commands = read_script("C='run --b'\neval $C", "x.sh").commands
    assert [plain(word) for word in commands[-1].words] == ["run", "--b"]


def test_words_tell_their_lines() -> None:
    script = read_script('S="--a 1 \\\n  --b"\nA=(x\n  y)\n\nrun $S ${A[@]}', "x.sh")
    assert [word[0].line for word in script.commands[0].words] == [6, 1, 1, 2, 3, 4]


def test_nothing_is_run(tmp_path: Path) -> None:
    target = tmp_path / "made"
    script = f"X=$(touch {target})\ntouch {target}\neval 'touch {target}'\n`touch {target}`"
    read_script(script, "x.sh")
    assert not target.exists()


def test_heredocs_are_data() -> None:
    script = "cat <<EOT > f\nrun --a $X\nEOT\nrun b"
    assert shown(read_script(script, "x.sh"))[-1] == ["run", "b"]


@pytest.mark.parametrize(
    "script",
    [
        "f() { f; }\nf",
        "C='eval $C'\neval $C",
        "A=xxxxxxxx\n" + "A=$A$A\n" * 40 + "run $A",
        "for i in " + "1 " * 300 + "; do " * 1 + "for j in " + "1 " * 300 + "; do "
        "for k in " + "1 " * 300 + "; do x=1; done; done; done",
        "(" * 3000 + ")" * 3000,
    ],
)
def test_scripts_without_end_end(script: str) -> None:
    with contextlib.suppress(ConfigError):
        read_script(script, "x.sh")


@given(st.text(alphabet="ab $(){}[]\"'`\\\n;&|<>#=+-*/!@?:", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        read_script(text, "x.sh")
