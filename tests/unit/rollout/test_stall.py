import subprocess
import sys
from pathlib import Path

from flexmarl.local.system import last_lines

CODE = """
import asyncio, re, sys, threading
from flexmarl.rollout.stall import dying_when_stalled

def hog():
    re.match(r"^(a|aa)+$", "a" * 64 + "b")

async def main():
    for _ in range(8):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    async with dying_when_stalled(1.5):
        await asyncio.sleep(3)
        print("alive", flush=True)
        if sys.argv[1] == "hog":
            await asyncio.to_thread(hog)
    await asyncio.sleep(2)
    print("ended", flush=True)

asyncio.run(main())
"""


def played(what: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CODE, what], capture_output=True, text=True, timeout=60, check=False
    )


def test_code_that_keeps_the_interpreter_ends_the_process_with_its_line() -> None:
    end = played("hog")
    assert (end.returncode, end.stdout) == (1, "alive\n")
    assert "in hog" in end.stderr


def test_the_last_words_of_a_process_that_stood_still_hold_the_stack_of_every_thread(
    tmp_path: Path,
) -> None:
    log = tmp_path / "worker.log"
    log.write_text("said before\n" * 30 + played("hog").stderr)
    words = last_lines(log, 0)
    assert words[0].startswith("Timeout (")
    assert any(line.endswith("in hog") for line in words)
    assert words[-1].endswith("in <module>")
    assert sum(line.startswith("Thread 0x") for line in words) >= 10


def test_a_loop_that_goes_on_is_left_alone_and_the_watch_ends_with_the_block() -> None:
    end = played("nothing")
    assert (end.returncode, end.stdout, end.stderr) == (0, "alive\nended\n", "")
