"""Keys of network links: what `kairos keys` makes, refuses, and never gives away."""

import contextlib
import os
import stat

import pytest
import zmq
import zmq.auth
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from kairos_ros.commands.cli import app
from kairos_ros.core.errors import ConfigError
from kairos_ros.transport.key_file import (
    Role,
    new_pair,
    parse_pair,
    parse_public,
    public_text,
    secret_text,
)
from kairos_ros.transport.key_folder import KeyFolder, default_folder


@pytest.fixture
def keys(tmp_path):
    return KeyFolder(tmp_path / "keys")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_key_is_one_that_only_this_user_can_read(keys):
    umask = os.umask(0)
    try:
        pair = keys.new("site_a", Role.CLIENT)
    finally:
        os.umask(umask)
    secret = keys.path / "own" / "site_a.secret"
    assert (mode(keys.path), mode(secret.parent), mode(secret)) == (0o700, 0o700, 0o600)
    assert zmq.curve_public(pair.secret) == pair.key.public
    assert keys.own(Role.CLIENT) == pair
    assert [path.name for path in secret.parent.iterdir()] == ["site_a.secret"]


def test_a_secret_is_not_in_a_printed_key(keys):
    pair = keys.new("site_a", Role.CLIENT)
    assert pair.secret.decode() not in repr(pair)
    assert pair.secret.decode() not in public_text(pair.key)


def test_zeromqs_own_reader_understands_the_files(keys, tmp_path):
    pair = keys.new("site_a", Role.CLIENT)
    public = tmp_path / "site_a.key"
    public.write_text(public_text(pair.key))
    assert zmq.auth.load_certificate(public) == (pair.key.public, None)
    both = zmq.auth.load_certificate(keys.path / "own" / "site_a.secret")
    assert both == (pair.key.public, pair.secret)


def test_a_second_key_of_a_name_does_not_replace_the_first(keys):
    first = keys.new("site_a", Role.CLIENT)
    with pytest.raises(ConfigError, match="take another name"):
        keys.new("site_a", Role.CLIENT)
    assert keys.own(Role.CLIENT, "site_a") == first


@pytest.mark.parametrize(
    ("part", "wrong", "run"),
    [
        ("own/site_a.secret", 0o640, "chmod 600"),
        ("own/site_a.secret", 0o604, "chmod 600"),
        (".", 0o750, "chmod 700"),
        (".", 0o702, "chmod 700"),
    ],
)
def test_a_secret_that_others_can_read_is_refused_with_the_command_that_helps(
    keys, part, wrong, run
):
    keys.new("site_a", Role.CLIENT)
    (keys.path / part).chmod(wrong)
    with pytest.raises(ConfigError, match=run):
        keys.own(Role.CLIENT)


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a b", "a\n", "x" * 65, "é", "-x"])
def test_a_name_that_could_be_a_path_or_a_line_is_refused(keys, name):
    with pytest.raises(ConfigError, match="letters, digits"):
        keys.new(name, Role.CLIENT)
    assert not keys.path.exists()


def test_the_only_key_of_a_role_needs_no_name_and_several_do(keys):
    with pytest.raises(ConfigError, match="kairos keys new NAME --server"):
        keys.own(Role.SERVER)
    keys.new("cloud", Role.SERVER)
    keys.new("site_a", Role.CLIENT)
    assert keys.own(Role.SERVER).key.name == "cloud"
    keys.new("cloud_2", Role.SERVER)
    with pytest.raises(ConfigError, match="cloud, cloud_2; name one"):
        keys.own(Role.SERVER)
    assert keys.own(Role.SERVER, "cloud_2").key.name == "cloud_2"
    with pytest.raises(ConfigError, match="no client key 'cloud'"):
        keys.own(Role.CLIENT, "cloud")


def test_a_client_is_let_in_once_and_revoked_for_good(keys):
    key = new_pair("site_a", Role.CLIENT).key
    assert keys.trust(key)
    assert not keys.trust(key)
    assert keys.trusted(Role.CLIENT) == [key]
    assert keys.revoke("site_a") == [key]
    assert (keys.trusted(Role.CLIENT), keys.revoked_keys()) == ([], [key])
    with pytest.raises(ConfigError, match="was revoked here"):
        keys.trust(key)
    assert keys.trust(new_pair("site_a", Role.CLIENT).key), "a new key of the same site may come"


def test_another_key_under_a_known_name_is_no_replacement(keys):
    keys.trust(new_pair("site_a", Role.CLIENT).key)
    with pytest.raises(ConfigError, match="revoke that one first"):
        keys.trust(new_pair("site_a", Role.CLIENT).key)


def test_a_server_is_looked_up_by_name(keys):
    with pytest.raises(ConfigError, match="kairos keys import"):
        keys.server()
    cloud, other = (new_pair(name, Role.SERVER).key for name in ("cloud", "other"))
    keys.trust(cloud)
    assert keys.server() == cloud
    keys.trust(other)
    assert keys.server("other") == other
    with pytest.raises(ConfigError, match="cloud, other"):
        keys.server()


def test_revoking_a_key_of_this_host_says_where_that_has_to_be_done(keys):
    keys.new("site_a", Role.CLIENT)
    with pytest.raises(ConfigError, match="on the hosts that trust it"):
        keys.revoke("site_a")
    with pytest.raises(ConfigError, match="nobody of the name 'site_b'"):
        keys.revoke("site_b")


def test_a_damaged_file_in_the_allow_list_lets_nobody_in_and_keeps_nobody_out(keys):
    key = new_pair("site_a", Role.CLIENT).key
    keys.trust(key)
    for name, content in {
        "empty": b"",
        "binary": os.urandom(100),
        "huge": b"#" * 10_000,
        "secret": secret_text(new_pair("x", Role.CLIENT)).encode(),
        "server": public_text(new_pair("y", Role.SERVER).key).encode(),
    }.items():
        (keys.clients / f"{name}.key").write_bytes(content)
    assert keys.trusted(Role.CLIENT) == [key]


def test_a_copied_secret_is_not_imported():
    with pytest.raises(ConfigError, match="must not be copied"):
        parse_public(secret_text(new_pair("site_a", Role.CLIENT)), "site_a.secret")


def test_halves_of_two_keys_are_no_pair():
    one, two = (secret_text(new_pair("a", Role.CLIENT)) for _ in range(2))
    mixed = one.rsplit("secret-key", 1)[0] + "secret-key" + two.rsplit("secret-key", 1)[1]
    with pytest.raises(ConfigError, match="does not belong"):
        parse_pair(mixed, "mixed")


@given(st.text(max_size=300))
def test_any_text_is_a_key_or_an_error_that_says_so(text):
    for parse in (parse_public, parse_pair):
        with pytest.raises(ConfigError):
            parse(text, "a file")


@given(st.binary(min_size=40, max_size=40))
def test_any_forty_characters_are_a_key_or_an_error(raw):
    text = public_text(new_pair("a", Role.CLIENT).key)
    head, _, _ = text.rpartition("public-key")
    damaged = f'{head}public-key = "{raw.decode("latin-1")}"\n'
    with contextlib.suppress(ConfigError):
        assert len(parse_public(damaged, "a file").public) == 40


def test_the_folder_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("KAIROS_KEYS", str(tmp_path / "x"))
    assert default_folder() == tmp_path / "x"
    monkeypatch.delenv("KAIROS_KEYS")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".config" / "kairos" / "keys"


def test_two_hosts_exchange_keys_with_the_command_line(tmp_path):
    """The walk through docs/security.md, on two folders."""

    def kairos(host, *arguments, text=None, code=0):
        done = CliRunner().invoke(
            app(), ["keys", *arguments], input=text, env={"KAIROS_KEYS": str(tmp_path / host)}
        )
        assert done.exit_code == code, done.output
        return done.output if code == 0 else done.exception

    kairos("edge", "new", "site_a")
    kairos("cloud", "new", "cloud", "--server")
    file = tmp_path / "cloud.key"
    kairos("cloud", "export", "cloud", "--out", str(file))
    assert "is trusted as a server" in kairos("edge", "import", str(file))
    exported = kairos("edge", "export", "site_a")
    assert "may connect to this host" in kairos("cloud", "import", "-", text=exported)
    edge, cloud = KeyFolder(tmp_path / "edge"), KeyFolder(tmp_path / "cloud")
    assert edge.server() == cloud.own(Role.SERVER).key
    assert cloud.trusted(Role.CLIENT) == [edge.own(Role.CLIENT).key]
    fingerprint = edge.own(Role.CLIENT).key.fingerprint
    assert fingerprint in kairos("cloud", "list")
    assert f"revoked client site_a {fingerprint}" in kairos("cloud", "revoke", "site_a")
    assert "revoked" in kairos("cloud", "list")
    assert isinstance(kairos("cloud", "import", "-", text=exported, code=1), ConfigError)
