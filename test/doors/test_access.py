"""Who may connect: loopback as it is, other addresses with tokens and TLS only."""

import pytest

from kairos_ros.core.errors import ConfigError
from kairos_ros.doors.access import Access, AccessDeniedError, access, read_tokens

A, B = "a" * 24, "b" * 24


@pytest.fixture
def tokens(tmp_path):
    def write(text: str, mode: int = 0o600):
        path = tmp_path / "tokens"
        path.write_text(text)
        path.chmod(mode)
        return path

    return write


def test_loopback_needs_nothing():
    assert access("127.0.0.1", None, None, None).tokens == {}
    assert access("::1", None, None, None).tls is None


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.7", "::"])
def test_other_addresses_need_tokens_and_tls(host, tokens):
    with pytest.raises(ConfigError, match="needs --tokens and --tls-cert and --tls-key"):
        access(host, None, None, None)
    with pytest.raises(ConfigError, match="needs --tls-cert and --tls-key; or listen on 127"):
        access(host, tokens(f"arm_1 {A}\n"), None, None)


def test_a_certificate_and_its_key_belong_together(tmp_path):
    with pytest.raises(ConfigError, match="belong together"):
        access("127.0.0.1", None, tmp_path / "cert.pem", None)
    (tmp_path / "none.pem").write_text("none")
    with pytest.raises(ConfigError, match="no certificate with its key"):
        access("127.0.0.1", None, tmp_path / "none.pem", tmp_path / "none.pem")


def test_tokens_are_read_from_a_file_of_their_owner_s(tokens):
    assert read_tokens(tokens(f"# robots\narm_1 {A}\n\ncell/arm_2 {B} # two\n")) == {
        "arm_1": A,
        "cell/arm_2": B,
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"arm_1 {A} x\n", "tokens:1: a line is ROBOT TOKEN"),
        (f"arm_1 {A}\narm_1 {B}\n", "tokens:2: robot arm_1 is named twice"),
        (f"arm_1 {A}\narm_2 {A}\n", "tokens:2: another robot has this token"),
        ("arm_1 short\n", "openssl rand"),
        (f"arm-1 {A}\n", "no name of a robot"),
        ("# none\n", "names no robot"),
    ],
)
def test_a_mistake_in_the_file_is_told_with_its_line(tokens, text, said):
    with pytest.raises(ConfigError, match=said):
        read_tokens(tokens(text))


def test_a_file_that_others_can_read_is_refused(tokens):
    with pytest.raises(ConfigError, match="chmod 600"):
        read_tokens(tokens(f"arm_1 {A}\n", 0o644))


def test_without_tokens_a_client_is_who_its_path_says():
    free = Access({}, None)
    assert free.robot_of("/arm_1", "") == "arm_1"
    assert free.robot_of("/cell/arm_1?x=1", "") == "cell/arm_1"
    assert free.robot_of("/", "Api-Key whatever") == ""
    with pytest.raises(AccessDeniedError, match="no name of a robot"):
        free.robot_of("/../etc", "")


def test_with_tokens_a_client_is_who_its_token_says():
    guarded = Access({"arm_1": A, "arm_2": B}, None)
    assert guarded.robot_of("/", f"Api-Key {A}") == "arm_1"
    assert guarded.robot_of("/arm_2", f"Bearer {B}") == "arm_2"
    for path, header in (("/arm_1", f"Api-Key {B}"), ("/arm_1", ""), ("/", "Api-Key é")):
        with pytest.raises(AccessDeniedError):
            guarded.robot_of(path, header)


@pytest.mark.parametrize(
    ("header", "said"), [("", "a token is needed here"), ("Bearer x", "no robot has this token")]
)
def test_a_client_without_the_right_token_is_told_where_to_give_it(header, said):
    with pytest.raises(AccessDeniedError, match=f"{said}.*KAIROS_TOKEN.*api_key"):
        Access({"arm_1": A}, None).robot_of("/", header)


def test_metrics_have_a_token_of_their_own_where_robots_need_one(monkeypatch, tokens):
    Access({}, None).check_scraper("")
    closed = Access({"arm_1": A}, None)
    with pytest.raises(AccessDeniedError, match=r"start kairos doors with \$KAIROS_DOORS_TOKEN"):
        closed.check_scraper(f"Bearer {A}")
    monkeypatch.setenv("KAIROS_DOORS_TOKEN", B)
    opened = access("127.0.0.1", tokens(f"arm_1 {A}\n"), None, None)
    opened.check_scraper(f"Bearer {B}")
    for brought in ("", f"Bearer {A}", B, "Bearer \xff"):
        with pytest.raises(AccessDeniedError, match="needs Authorization"):
            opened.check_scraper(brought)
