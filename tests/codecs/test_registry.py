"""A message is read by the codec of its content type, or not at all."""

import pytest

from carom import Message
from carom.codecs import Raw, Registry, standard
from carom.errors import ConfigurationError, DecodeError


def test_json_writes_everything_but_bytes():
    registry = standard()
    assert registry.encode({"a": 1}) == (b'{"a":1}', "application/json")
    assert registry.encode(b"\xff") == (b"\xff", "application/octet-stream")


def test_what_no_codec_writes_is_refused_with_advice():
    with pytest.raises(ConfigurationError, match="no codec writes a str: publish a dataclass"):
        Registry((Raw(),)).encode("text")


def test_what_no_codec_reads_is_refused():
    with pytest.raises(ConfigurationError, match="no codec reads into"):
        Registry((Raw(),)).reader(dict)


def test_text_is_read_as_text_and_as_json_by_what_it_says_it_is():
    read = standard().reader(str)
    assert read(Message(body=b'"x"', content_type="application/json")) == "x"
    assert read(Message(body=b'"x"', content_type="text/plain")) == '"x"'
    assert read(Message(body=b'"x"')) == "x"


def test_text_is_utf_8_or_it_is_refused():
    with pytest.raises(DecodeError, match="byte 1 cannot be read"):
        standard().reader(str)(Message(body=b"a\xff", content_type="text/plain"))


def test_bytes_are_taken_whatever_they_say_they_are():
    message = Message(body=b"\xff", content_type="image/png", content_encoding="br")
    assert standard().reader(bytes)(message) == b"\xff"


def test_an_unknown_content_type_or_encoding_is_a_decode_error_every_time():
    read = standard().reader(dict)
    fine = Message(body=b"{}", content_type="application/json")
    for _ in range(2):
        assert read(fine) == {}
        with pytest.raises(DecodeError, match="content type 'image/png' is not one"):
            read(Message(body=b"{}", content_type="image/png"))
        with pytest.raises(DecodeError, match="content encoding 'gzip' is not read; take the payload as bytes"):
            read(Message(body=b"{}", content_type="application/json", content_encoding="gzip"))


@pytest.mark.parametrize("encoding", ["", "utf-8", "UTF-8", "utf8", "identity", " Identity "])
def test_an_encoding_that_changes_nothing_is_none(encoding):
    assert standard().reader(dict)(Message(body=b"{}", content_encoding=encoding)) == {}


def test_spellings_of_content_types_are_remembered_up_to_a_bound():
    read = standard().reader(dict)
    for number in range(200):
        assert read(Message(body=b"{}", content_type=f"application/x{number}+json")) == {}
    (known,) = [cell.cell_contents for cell in read.__closure__ if isinstance(cell.cell_contents, dict)]
    assert len(known) == 64
