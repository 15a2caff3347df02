"""Settings come from the environment, secrets also from files, and never show in an error."""

import pytest

from carom import App
from carom.errors import ConfigurationError
from carom.runtime import settings


def test_only_caroms_own_variables_are_read():
    found = settings.from_environment({"CAROM_BROKER": "embedded://", "BROKER": "x", "CAROM_UNKNOWN": "x", "PATH": "/"})
    assert found == {"broker": "embedded://"}


@pytest.mark.parametrize("name", sorted(set(settings.NAMES) - {"broker"}))
def test_every_setting_may_come_from_a_file(name, tmp_path):
    file = tmp_path / "secret"
    file.write_text("amqp://user:hidden@host/\n", encoding="utf-8")
    assert settings.from_environment({f"CAROM_{name.upper()}_FILE": str(file)}) == {name: "amqp://user:hidden@host/"}


def test_the_file_of_a_broker_on_the_network_is_read_again_whenever_it_is_asked(tmp_path):
    file = tmp_path / "secret"
    file.write_text("amqp://user:first@host/\n", encoding="utf-8")
    url = settings.from_environment({"CAROM_BROKER_FILE": str(file)})["broker"]
    assert url() == "amqp://user:first@host/"
    file.write_text("amqp://user:second@host/\n", encoding="utf-8")
    assert url() == "amqp://user:second@host/"
    assert App.from_env({"CAROM_BROKER_FILE": str(file)}, observers=()).address() == "amqp://user:second@host/"


def test_the_file_of_an_embedded_broker_is_read_once(tmp_path):
    file = tmp_path / "where"
    file.write_text("embedded://\n", encoding="utf-8")
    assert settings.from_environment({"CAROM_BROKER_FILE": str(file)}) == {"broker": "embedded://"}


def test_an_empty_variable_says_nothing():
    assert settings.from_environment({"CAROM_BROKER": "", "CAROM_NAME_FILE": ""}) == {}


def test_a_value_and_a_file_for_it_are_a_contradiction_that_shows_neither():
    with pytest.raises(ConfigurationError, match="CAROM_BROKER and CAROM_BROKER_FILE are both set") as caught:
        settings.from_environment({"CAROM_BROKER": "amqp://user:hidden@host/", "CAROM_BROKER_FILE": "/run/secret"})
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_named_with_its_variable(content, tmp_path):
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"CAROM_BROKER_FILE names .*secret, which cannot be read"):
        settings.from_environment({"CAROM_BROKER_FILE": str(file)})


@pytest.mark.parametrize(
    ("text", "delays"), [("1s, 10s,1m", ("1s", "10s", "1m")), ("1s", ("1s",)), ("", ()), (" , ", ())]
)
def test_delays_are_written_with_commas(text, delays):
    assert settings.durations(text) == delays


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cannot reach amqp://user:hidden@host/vhost", "cannot reach amqp://***@host/vhost"),
        ("amqp://user@host and amqps://a:b@c", "amqp://***@host and amqps://***@c"),
        ("amqp://user:hid@den@host/", "amqp://***@host/"),
        ("postgresql+asyncpg://u:p%40@h:5432/db?x=1", "postgresql+asyncpg://***@h:5432/db?x=1"),
        ("embedded:///file.db mail@example.org", "embedded:///file.db mail@example.org"),
    ],
)
def test_credentials_in_a_url_do_not_show(text, shown):
    assert settings.redacted(text) == shown
