"""`python -m poslens` as a program: full or closed streams, other encodings, signals, invalid file
names, full disks."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import FileLock, Timeout

from poslens.attribution.errors import UserError
from poslens.cache.exchange.atomic_file import replacing
from tests.support.forked import Child, Forked
from tests.support.ports import free_port
from tests.support.served import answers

ROOT = Path(__file__).parents[3]
LONG = "x" * 300


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """`start("rank", stdout=...)`: the program in a separate process."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(*arguments: str, **options: object) -> subprocess.Popen[bytes]:
        extra = options.pop("env", {})
        env = {**os.environ, "POSLENS_HOME": str(tmp_path / "home"), **extra}  # type: ignore[dict-item]
        given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        process = subprocess.Popen(
            [sys.executable, "-m", "dashboard", *arguments],
            cwd=ROOT,
            env=env,
            **given,  # type: ignore[call-overload]
        )
        running.append(process)
        return process

    yield begin
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=240)
    said = (err or b"").decode("utf-8")
    assert "Traceback" not in said and "Exception ignored" not in said, said
    return process.returncode, (out or b"").decode("utf-8"), said


def messages(said: str) -> list[str]:
    """The lines of standard error without progress, which a slow machine shows."""
    return [line for line in said.strip().splitlines() if "%|" not in line and "/s]" not in line]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["precompute", "--model", "BM25", "--method", "saliency"],
            "saliency is unavailable for BM25",
        ),
        (["precompute", "--dataset", LONG], "There is no data set"),
        (["precompute", "--model", LONG], "There is no model"),
        (["curve", "--data", f"a={LONG}"], "is not a folder or a file"),
        (["run", "--model", f"a={LONG}"], "File name too long"),
        (["run", "--published", LONG], "File name too long"),
        (["run", "--port", "-1"], "choose one from 1 to 65535"),
        (["run", "--port", "70000"], "choose one from 1 to 65535"),
        (["run", "--data", "a=~nouser/x"], "there is no such user"),
        (["run", "--published", "~nouser/x"], "there is no such user"),
        (["explain", "--query", "x", "--document-file", LONG], "can't be read"),
        (
            ["curve", "--figure", f"{LONG}.png", "--model", "BM25", "--method", "terms"],
            "File name too long",
        ),
        (["cache", "import", LONG], "cannot be read"),
        (["cache", "merge", LONG], ""),
        (["cache", "verify", "--parts", LONG], ""),
    ],
)
def test_unusable_input_is_refused_in_one_sentence(
    forked: Forked, tmp_path: Path, arguments: list[str], words: str
) -> None:
    code, out, said = forked.run(*arguments, env={"POSLENS_HOME": str(tmp_path / "home")})
    assert "Traceback" not in said and "Exception ignored" not in said, said
    lines = messages(said)
    assert code == 2 and out == "", said
    assert len(lines) == 1 and words in lines[0] and "unexpected" not in said, said


def test_a_server_does_not_start_with_a_folder_that_is_no_model(
    forked: Forked, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    asked = ("run", "--model", str(tmp_path / "mine"), "--port", str(free_port()))
    code, out, said = forked.run(*asked, env={"POSLENS_HOME": str(tmp_path / "home")})
    assert code == 2 and out == "" and "Traceback" not in said
    assert said.strip().endswith(
        "mine has no weights in its folder: it needs a *.safetensors file."
    )


TERMS = ["explain", "--query", "ice", "--model", "BM25", "--method", "terms"]


@pytest.mark.parametrize("home", ["~nouser", LONG, "/dev/null/x"])
def test_an_invalid_home_is_reported_in_one_sentence(forked: Forked, home: str) -> None:
    code, out, said = forked.run(*TERMS, "--document", "Ice melts.", env={"POSLENS_HOME": home})
    assert len(messages(said)) == 1, said
    if code == 0:  # computed, and reported as not stored
        assert "isn't stored" in said and json.loads(out)["score"] > 0
    else:
        assert code == 2 and ("no such user" in said or "cache" in said)


EXPLAIN = [
    "explain",
    "--query",
    "ice 你好",
    "--document",
    "Ice melts. 你好 \udcff",
    "--model",
    "BM25",
    "--method",
    "terms",
]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize("arguments", [EXPLAIN, ["models"], ["methods"]], ids=lambda a: a[0])
def test_a_full_output_is_reported_in_one_sentence(
    forked: Forked,
    start: Callable[..., subprocess.Popen[bytes]],
    arguments: list[str],
    tmp_path: Path,
) -> None:
    if arguments == ["models"]:  # the interpreter's shutdown would write once more
        with Path("/dev/full").open("wb") as full:
            code, _, said = ended(start(*arguments, stdout=full))
    else:
        home = {"POSLENS_HOME": str(tmp_path / "home")}
        code, _, said = forked.run(*arguments, env=home, stdout="/dev/full")
    assert code == 2 and len(lines := messages(said)) == 1, said
    assert "No space left on device" in lines[0]


def test_closed_streams_cause_no_traceback(forked: Forked, tmp_path: Path) -> None:
    home = {"POSLENS_HOME": str(tmp_path)}
    code, _, said = forked.run(*TERMS, "--document-file", "-", env=home, stdin=None)
    assert code == 2 and said.startswith("The document is empty: it needs ")
    assert len(said.splitlines()) == 1
    document = (*TERMS, "--document", "Ice melts.")
    code, out, said = forked.run(*document, env=home, stdout=None)
    assert (code, out, messages(said)) == (0, "", []), said
    code, out, _ = forked.run(*document, env=home, stderr=None)
    assert code == 0 and json.loads(out)["score"] > 0
    # A whole interpreter, from start to end.
    words = [sys.executable, "-m", "dashboard", "models"]
    shell = ["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *words]
    assert subprocess.run(shell, cwd=ROOT, timeout=240).returncode == 0


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-16"])
def test_results_are_utf_8_whatever_the_terminals_encoding(
    forked: Forked,
    start: Callable[..., subprocess.Popen[bytes]],
    encoding: str,
    tmp_path: Path,
) -> None:
    given = {"POSLENS_HOME": str(tmp_path / "home"), "PYTHONIOENCODING": encoding}
    if encoding == "utf-16":  # the encoding least like UTF-8, in a separate interpreter
        code, out, _ = ended(start(*EXPLAIN, env=given))
    else:
        code, out, said = forked.run(*EXPLAIN, env=given)
        assert "Traceback" not in said, said
    assert code == 0 and "你" in "".join(t["text"] for t in json.loads(out)["query"]["tokens"])


def test_an_earlier_file_survives_a_failed_export(tmp_path: Path) -> None:
    target = tmp_path / "curve.csv"
    target.write_text("earlier")
    with pytest.raises(UserError, match="is full"), replacing(target) as file:
        file.write(b"half of it")
        raise OSError(28, "the disk is full")
    assert target.read_text() == "earlier" and list(tmp_path.iterdir()) == [target]
    target.chmod(0o640)
    with replacing(target) as file:
        file.write(b"later")
    assert target.read_text() == "later" and target.stat().st_mode & 0o777 == 0o640
    link = tmp_path / "link.csv"
    link.symlink_to(target)
    with replacing(link) as file:
        file.write(b"through the link")
    assert link.is_symlink() and target.read_text() == "through the link"
    with pytest.raises(UserError, match="cannot be written"), replacing(tmp_path / "no" / "x"):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk, which only root may")
def test_a_full_disk_leaves_the_earlier_export(tmp_path: Path) -> None:
    from poslens.commands.result_files import written

    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("this machine lets nobody mount")
    try:
        target = disk / "curve.csv"
        target.write_bytes(b"earlier")
        with pytest.raises(UserError, match="No space left on device"):
            written(target, bytes(1 << 20))
        assert target.read_bytes() == b"earlier" and list(disk.iterdir()) == [target]
    finally:
        subprocess.run(["umount", str(disk)], check=False)


# -- signals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["rank", "--model", "MiniLM"],
        ["bias", "--model", "MiniLM"],
        ["cause", "--model", "MiniLM", "--pairs", "40"],
        ["precompute", "--model", "MiniLM"],
    ],
    ids=lambda a: a[0],
)
def test_sigterm_ends_a_command_like_ctrl_c(
    forked: Forked,
    start: Callable[..., subprocess.Popen[bytes]],
    arguments: list[str],
    tmp_path: Path,
) -> None:
    file = tmp_path / "said"
    file.touch()
    process: Child | subprocess.Popen[bytes]
    if arguments[0] == "precompute":  # one in a separate interpreter, which also ends
        process = start(*arguments, stderr=file.open("wb"))
    else:
        home = {"POSLENS_HOME": str(tmp_path / "home")}
        process = forked.start(*arguments, env=home, stderr=str(file))
    deadline = time.monotonic() + 200
    while "MiniLM" not in file.read_text() and "%|" not in file.read_text():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    status = process.wait()
    said = file.read_text()
    assert status == 130 and "All computed results are stored" in said, said
    assert "Traceback" not in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_waits_for_the_device_can_be_interrupted(
    forked: Forked, number: signal.Signals, tmp_path: Path
) -> None:
    device = tmp_path / "home" / "cache" / "device-auto.lock"
    device.parent.mkdir(parents=True)
    said = tmp_path / "said"
    with FileLock(device):
        home = {"POSLENS_HOME": str(tmp_path / "home")}
        process = forked.start("precompute", "--model", "MiniLM", env=home, stderr=str(said))
        deadline = time.monotonic() + 200
        while not is_held(Path(f"{device}.next")):
            assert process.poll() is None and time.monotonic() < deadline, said.read_text()
            time.sleep(0.1)
        process.send_signal(number)
        assert process.wait() == 130
    assert "Traceback" not in said.read_text()


def is_held(path: Path) -> bool:
    """Whether a process holds the lock; the file of a lock that is just being requested counts,
    too."""
    try:
        with FileLock(path, timeout=0):
            return False
    except Timeout:
        return True


def test_sigterm_ends_a_cache_command(forked: Forked, tmp_path: Path) -> None:
    home = {"POSLENS_HOME": str(tmp_path / "home")}
    assert forked.run(*EXPLAIN, env=home)[0] == 0
    typed, said = tmp_path / "typed", tmp_path / "said"
    os.mkfifo(typed)
    said.touch()
    deadline = time.monotonic() + 100
    with typed.open("r+b", buffering=0):  # a writer that doesn't respond
        process = forked.start("cache", "delete", env=home, stdin=str(typed), stderr=str(said))
        while "Delete BM25" not in said.read_text():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait() in (1, 130) and "Traceback" not in said.read_text()
    assert "BM25" in forked.run("cache", "list", env=home)[1]


@pytest.mark.parametrize("sent", [True, False])
def test_an_interrupt_during_an_import_ends_the_program(sent: bool, tmp_path: Path) -> None:
    (tmp_path / "library.py").write_text(f"""
import os, signal
try:
    if {sent}:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
except:
    os.abort()
import no_such_part
""")
    code = """
import typer
from poslens import cli
app = typer.Typer(pretty_exceptions_enable=False)
@app.command()
def fails():
    import library
cli.main(app)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
    )
    assert (done.returncode, "Traceback" in done.stderr) == ((130, False) if sent else (1, True))


ENDS = {0, 130, -signal.SIGINT}
"""Allowed exit codes of a server that is interrupted before it answers, besides the signal itself.
Before its first lines of Python have run, the system ends the process. Python also ends itself by
SIGINT, although it was caught, if the interrupt arrives while a string is executed, as when named
tuples are created."""


@pytest.mark.parametrize("seconds", [1.0, 3.0])
def test_a_server_that_is_starting_ends_cleanly(
    start: Callable[..., subprocess.Popen[bytes]], seconds: float
) -> None:
    """With Ctrl-C and with SIGTERM, in parallel: at its first lines, and during imports."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    servers = [start("run", "--port", str(free_port())) for _ in numbers]
    time.sleep(seconds)
    for number, server in zip(numbers, servers, strict=True):
        server.send_signal(number)
    for number, server in zip(numbers, servers, strict=True):
        _, err = server.communicate(timeout=240)
        ended_well = server.returncode in ENDS | {-number}
        assert ended_well, (server.returncode, err.decode()[-2000:])
        assert "Traceback" not in err.decode() and "terminate called" not in err.decode()


@pytest.mark.parametrize("stage", ["open", "answers"])
def test_a_running_server_ends_cleanly_after_either_signal(
    forked: Forked, tmp_path: Path, stage: str
) -> None:
    """After it has just opened its port, and with exit code 0 once it answers."""
    ports = {number: free_port() for number in (signal.SIGINT, signal.SIGTERM)}
    servers = {
        number: forked.start(
            *("run", "--port", str(port)),
            env={"POSLENS_HOME": str(tmp_path / f"{port}")},
            stderr=str(tmp_path / f"{port}.log"),
        )
        for number, port in ports.items()
    }
    for number, server in servers.items():
        port = ports[number]
        while not (listens(port) if stage == "open" else answers(health(port))):
            assert server.poll() is None, (tmp_path / f"{port}.log").read_text()
            time.sleep(0.02)
        server.send_signal(number)
    for number, server in servers.items():
        code, log = server.wait(), (tmp_path / f"{ports[number]}.log").read_text()
        assert code in ((0,) if stage == "answers" else ENDS | {-number}), log
        assert "Traceback" not in log and "terminate called" not in log


def health(port: int) -> str:
    return f"http://127.0.0.1:{port}/_stcore/health"


def listens(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0
