"""Where workers of a host meet: lives find each other, and what dead ones left is taken away."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvtransfer.meeting import NEW_S, NEW_SUFFIX, SUFFIX, Meeting
from protocol.messages import Peer

D = Peer("decode-1", "0199-a")
LIVE_AND_DIE = """
import os, signal, sys
from pathlib import Path
from kvtransfer.meeting import Meeting
from protocol.messages import Peer
listener = Meeting(Path(sys.argv[1])).listen(Peer("decode-9", "1"))
os.kill(os.getpid(), signal.SIGKILL)
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_life_that_listens_is_found_and_no_other(tmp_path: Path) -> None:
    here, there = Meeting(tmp_path), Meeting(tmp_path)
    with here.listen(D) as listener:
        connection = there.connect(D)
        assert connection is not None
        listener.accept()[0].close()
        connection.close()
        assert there.connect(Peer(D.id, "0199-b")) is None
        assert there.connect(Peer("decode-2", D.epoch)) is None
    assert there.connect(D) is None, "its socket is there, but nobody listens"
    here.leave(D)
    here.leave(D)
    assert names(tmp_path) == []
    here.close()
    there.close()


def test_what_a_killed_worker_left_is_taken_away_by_the_next_and_the_living_stay(tmp_path: Path) -> None:
    living = Meeting(tmp_path)
    with living.listen(Peer("decode-2", "1")):
        (tmp_path / "cores").touch()
        command = [sys.executable, "-c", LIVE_AND_DIE, str(tmp_path)]
        assert subprocess.run(command, check=False, timeout=30).returncode == -9
        assert len(names(tmp_path)) == 3
        next_one = Meeting(tmp_path)
        with next_one.listen(D):
            sockets = [name for name in names(tmp_path) if name.endswith(SUFFIX)]
            assert len(sockets) == 2
            assert (tmp_path / "cores").exists()
            for peer in (D, Peer("decode-2", "1")):
                connection = next_one.connect(peer)
                assert connection is not None
                connection.close()
        next_one.close()
    living.close()


def test_a_socket_is_its_users_alone_whatever_the_umask(tmp_path: Path) -> None:
    meeting = Meeting(tmp_path)
    before = os.umask(0)
    try:
        listener = meeting.listen(D)
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in tmp_path.iterdir()] == [0o600]
    listener.close()
    meeting.close()


def test_a_worker_that_was_killed_just_before_it_listened_leaves_nothing_for_long(tmp_path: Path) -> None:
    meeting = Meeting(tmp_path)
    half_made = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    for each, name in zip(half_made, ("fresh", "old"), strict=True):
        each.bind(str(tmp_path / (name + NEW_SUFFIX)))
        each.close()
    long_ago = time.time() - 2 * NEW_S
    os.utime(tmp_path / ("old" + NEW_SUFFIX), (long_ago, long_ago))
    meeting.sweep()
    assert names(tmp_path) == ["fresh" + NEW_SUFFIX], "its owner may be about to listen"
    meeting.close()


def test_a_place_that_cant_be_listened_at_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = Meeting(tmp_path)

    def fail(path: Path, target: Path) -> None:
        raise OSError("no")

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="no"):
        meeting.listen(D)
    assert names(tmp_path) == []
    meeting.close()


def test_a_folder_may_have_a_long_name_and_need_not_be_there(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120) / ("y" * 120)
    meeting = Meeting(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    with meeting.listen(D):
        connection = meeting.connect(D)
        assert connection is not None
        connection.close()
    meeting.close()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_folder_that_others_may_write_into_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "link"
    folder.mkdir()
    folder.chmod(mode)
    before = len(names(Path("/proc/self/fd")))
    with pytest.raises(PermissionError, match="changed by other users"):
        Meeting(folder)
    assert len(names(Path("/proc/self/fd"))) == before


def test_a_file_in_the_folders_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "link").touch()
    with pytest.raises(OSError, match="link"):
        Meeting(tmp_path / "link")


def test_a_worker_that_is_too_busy_to_answer_keeps_its_socket(tmp_path: Path) -> None:
    meeting = Meeting(tmp_path)
    with meeting.listen(D) as listener:
        listener.listen(0)
        waiting = [meeting.connect(D)]
        with pytest.raises(BlockingIOError):
            waiting.append(meeting.connect(D))
        meeting.sweep()
        assert len(names(tmp_path)) == 1
        for each in waiting:
            assert isinstance(each, socket.socket)
            each.close()
    meeting.close()
