"""What `up` shows, and what it does when nobody looks."""

import os
import threading

from kvferry.output import MAX_WAITING_LINES, Output

DEADLINE_S = 20.0


def test_each_line_says_who_speaks() -> None:
    read, write = os.pipe()
    with os.fdopen(read, "rb") as reader, os.fdopen(write, "wb") as writer:
        output = Output(writer, 8)
        output.say("hello")
        output.emit("decode-1", b"ready")
        output.bare("curl")
        output.close()
        writer.close()
        assert reader.read() == b"up       | hello\ndecode-1 | ready\ncurl\n"


def test_a_reader_that_went_away_is_told() -> None:
    read, write = os.pipe()
    with os.fdopen(write, "wb", buffering=0) as writer:
        output = Output(writer, 8)
        told = threading.Event()
        output.on_broken = told.set
        os.close(read)
        output.say("hello")
        assert told.wait(DEADLINE_S)
        assert output.broken.is_set()
        output.close()


def test_a_reader_that_stopped_costs_lines_and_never_blocks() -> None:
    read, write = os.pipe()
    with os.fdopen(read, "rb") as reader, os.fdopen(write, "wb") as writer:
        output = Output(writer, 4)
        for _ in range(MAX_WAITING_LINES + 2000):
            output.emit("a", b"x" * 100)
        rest: list[bytes] = []
        thread = threading.Thread(target=lambda: rest.append(reader.read()))
        thread.start()
        while output._lines.qsize() > MAX_WAITING_LINES // 2:
            threading.Event().wait(0.001)
        output.say("later")
        output.close()
        writer.close()
        thread.join(DEADLINE_S)
        assert b"lines were dropped" in rest[0]
        assert rest[0].endswith(b"later\n")
