"""The engine process's first words to io."""

import socket

from engine.api import Ready, Report
from engine.child import _receive_start, receive_config, send_start
from engine.config import EngineConfig
from engine.layout import CacheGroup, KVLayout
from engine.pool_memory import PoolMemory
from engine.port import FrameReader, SocketCommands, Started, pack_frame

LAYOUT = KVLayout((CacheGroup((0,), 1, 8),), "float32")
STARTED = Started(Ready(3, 100, 0, "weights", "numerics"), LAYOUT, "toy")


def test_reports_that_come_with_the_first_frame_are_kept() -> None:
    ours, theirs = socket.socketpair()
    pool = PoolMemory(LAYOUT, 3)
    with ours, theirs:
        send_start(theirs, STARTED, pool)
        commands = SocketCommands(theirs)
        commands.emit(Report())
        whole = pack_frame(Report())
        theirs.sendall(whole[:7])
        started, fd, (reader, early) = _receive_start(ours)
        assert (started, early) == (STARTED, [Report()])
        assert PoolMemory(LAYOUT, 3, fd).num_blocks == 3
        assert reader.feed(whole[7:]) == [Report()]


def test_settings_arrive_whole_in_any_cut() -> None:
    config = EngineConfig(model="/somewhere", worker_id="decode-1")
    reader = FrameReader()
    frames = [frame for byte in pack_frame(config) for frame in reader.feed(bytes([byte]))]
    assert frames == [config]
    ours, theirs = socket.socketpair()
    with ours:
        ours.sendall(pack_frame(config))
        sock, received = receive_config(theirs.detach())
        with sock:
            assert received == config
