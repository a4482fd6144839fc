"""The wire: messages, codec, subjects, errors. Standard library and msgpack only."""
