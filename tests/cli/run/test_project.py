"""Where a command finds the App and its servers, what is said when they are not there, and whom it does not believe."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from leftfold import ConfigurationError, InfrastructureError, connect
from leftfold.cli.main import run
from leftfold.cli.run.setup import users_of
from leftfold.model.rights import redis_rules
from leftfold.runtime.connect import kafka_settings, redis_settings
from leftfold.runtime.discovery import Environment, announced
from leftfold.runtime.project import find_project, load_app, servers_to_start
from leftfold.version import install_command
from services.baskets.app import app
from tests.cli.guild import app as guild
from tests.cli.shell import ROOT, Shell

MODULE = "from leftfold import App\napp = App('shop')\nother = 3\n"
HERE = {"kafka": "127.0.0.1:1111", "redis": "redis://127.0.0.1:2222/0", "pids": {}}
STRANGER = 12345
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def test_the_nearest_pyproject_with_leftfold_in_it_is_the_project(place: Path) -> None:
    (place / "pyproject.toml").write_text('[tool.leftfold]\napp = "shop:app"\n', "utf-8")
    inner = place / "a" / "b"
    inner.mkdir(parents=True)
    (place / "a" / "pyproject.toml").write_text("[project]\n", "utf-8")
    project = find_project(inner)
    assert (project.root, project.app) == (place, "shop:app")
    assert project.data == place / ".leftfold"


def test_an_app_that_configures_logging_leaves_the_loggers_of_leftfold_enabled(place: Path) -> None:
    """Python's `dictConfig` disables all loggers that it does not name, unless it is asked not to."""
    source = "import logging.config\nlogging.config.dictConfig({'version': 1})\n"
    (place / "configures.py").write_text(source + MODULE, "utf-8")
    script = (
        "import logging\nfrom leftfold.runtime.project import load_app\n"
        "logs = [logging.getLogger(name) for name in ('leftfold', 'leftfold.kafka', 'another')]\n"
        "load_app('configures:app')\nprint([log.disabled for log in logs])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "framework")}
    ended = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout == "[False, False, True]\n"


def test_a_logger_that_an_app_disables_on_purpose_stays_disabled(
    module: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = logging.getLogger("leftfold.quiet")
    monkeypatch.setattr(log, "disabled", False)
    source = "import logging\nlogging.getLogger('leftfold.quiet').disabled = True\n"
    load_app(f"{module(source + MODULE)}:app")
    assert log.disabled


def test_a_project_found_upwards_lends_its_directory_to_imports(
    place: Path, module: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = module(MODULE)
    (place / "pyproject.toml").write_text(f'[tool.leftfold]\napp = "{name}:app"\n', "utf-8")
    (place / "inner").mkdir()
    monkeypatch.chdir(place / "inner")
    assert load_app().name == "shop"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "which App? say --app package.module:app, set LEFTFOLD_APP, or write into pyproject.toml"),
        ("shop", "must be module:name"),
        ("nothing.here:app", "there is no module nothing in"),
        ("{name}:ap", "has no App 'ap'; it has app"),
        ("{name}:other", "has no App 'other'; it has app"),
    ],
)
def test_a_wrong_app_is_explained(place: Path, module: Callable[[str], str], spec: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_app(spec.format(name=module(MODULE)))
    assert message in str(caught.value)
    assert caught.value.exit_code == 78


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import nothing_like_it\n", "ModuleNotFoundError: No module named 'nothing_like_it' ({file}:1)"),
        ("x = (\n", "'(' was never closed ({file}:1)"),
        ("\n1 / 0\n", "ZeroDivisionError: division by zero ({file}:2)"),
        ("from leftfold import App\napp = App('Shop!')\n", "app 'Shop!': a name is lower case letters"),
    ],
    ids=["its import", "its syntax", "its own error", "its definitions"],
)
def test_a_module_that_cannot_be_imported_says_where_and_why(
    place: Path, module: Callable[[str], str], source: str, message: str
) -> None:
    name = module(source)
    with pytest.raises(ConfigurationError) as caught:
        load_app(f"{name}:app")
    assert message.format(file=place / f"{name}.py") in str(caught.value)


def test_a_broken_pyproject_is_named(place: Path) -> None:
    (place / "pyproject.toml").write_text("[tool", "utf-8")
    with pytest.raises(ConfigurationError, match="pyproject.toml cannot be read"):
        find_project()


@pytest.fixture
def announcement(place: Path) -> Path:
    (place / ".leftfold").mkdir()
    file = place / ".leftfold" / "servers.json"
    file.write_text(json.dumps(HERE), "utf-8")
    return file


def test_without_any_address_the_command_to_type_is_named(place: Path) -> None:
    with pytest.raises(ConfigurationError) as kafka:
        kafka_settings()
    with pytest.raises(ConfigurationError) as redis:
        redis_settings()
    assert str(kafka.value) == (
        "no Kafka address: start servers with `leftfold up`, or set LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS=host:port"
    )
    assert "set LEFTFOLD_REDIS_URL=redis://host:6379/0" in str(redis.value)


def test_an_argument_wins_over_the_environment_and_that_over_what_is_announced_above(
    announcement: Path, place: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(place / "a" / "b")
    assert kafka_settings().bootstrap_servers == "127.0.0.1:1111"
    assert redis_settings().url == "redis://127.0.0.1:2222/0"
    other = tmp_path_factory.mktemp("data")
    (other / "servers.json").write_text(json.dumps({**HERE, "kafka": "127.0.0.1:3333"}), "utf-8")
    monkeypatch.setenv("LEFTFOLD_DATA", str(other))
    assert kafka_settings().bootstrap_servers == "127.0.0.1:3333", "another data directory is asked instead"
    monkeypatch.setenv("LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS", "broker:9092")
    monkeypatch.setenv("LEFTFOLD_REDIS_URL", "redis://redis:6379/3")
    monkeypatch.setenv("LEFTFOLD_KAFKA_CLIENT_ID", "till")
    assert kafka_settings().bootstrap_servers == "broker:9092"
    assert redis_settings().url == "redis://redis:6379/3"
    settings = kafka_settings("other:9092")
    assert (settings.bootstrap_servers, settings.client_id) == ("other:9092", "till")
    assert kafka_settings(settings) is settings


def test_a_broken_announcement_is_named(announcement: Path) -> None:
    announcement.write_text("{", "utf-8")
    with pytest.raises(ConfigurationError, match=r"servers.json cannot be read .* leftfold up"):
        kafka_settings()


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'leftfold[spark]'"),
        ({"dir_info": {"editable": True}, "url": "file:///some%20where/it"}, "pip install -e '/some where/it[spark]'"),
        ({"dir_info": {}, "url": "file:///it"}, "pip install 'leftfold[spark] @ file:///it'"),
        ({"archive_info": {}, "url": "file:///it.whl"}, "pip install 'leftfold[spark] @ file:///it.whl'"),
    ],
    ids=["index", "checkout", "directory", "wheel"],
)
def test_extras_are_installed_from_where_the_package_is_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: dict[str, object] | None, command: str
) -> None:
    info = tmp_path / "leftfold-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: leftfold\nVersion: 0.1.0\n", "utf-8")
    if origin is not None:
        (info / "direct_url.json").write_text(json.dumps(origin), "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert install_command("spark") == command


def test_a_missing_extra_is_named(tmp_path: Path) -> None:
    script = """
import sys
sys.modules["confluent_kafka"] = None
from leftfold import App, connect
connect(App("none"), kafka="127.0.0.1:1").client
"""
    assert f"install it: {install_command('kafka')}" in Shell(tmp_path).python("-c", script).err


def test_a_closed_connection_says_so(announcement: Path) -> None:
    with connect(app) as connection:
        assert connection.views[app.views[0]].view is app.views[0]
    with pytest.raises(InfrastructureError, match="this connection of app baskets is closed"):
        _ = connection.views


@pytest.fixture
def mine(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of our own, below a project whose App says that it was run."""
    (place / "pyproject.toml").write_text('[tool.leftfold]\napp = "lured:app"\n', "utf-8")
    (place / "lured.py").write_text("from pathlib import Path\nPath(__file__).with_name('ran').touch()\n", "utf-8")
    mine = place / "a" / "mine"
    mine.mkdir(parents=True)
    monkeypatch.chdir(mine)
    monkeypatch.delitem(sys.modules, "lured", raising=False)
    return mine


@as_root
@pytest.mark.parametrize("where", ["above", "here"])
@pytest.mark.parametrize("what", ["pyproject.toml", "."])
def test_a_project_of_another_user_is_not_run(
    mine: Path, what: str, where: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    above = mine.parents[1]
    os.chown(above / what, STRANGER, -1)
    if where == "here":
        monkeypatch.chdir(above)
    for words in (["status"], ["check"], ["up"], ["dev"]):
        assert run(words) == ConfigurationError.exit_code, words
        result = capfd.readouterr().err
        assert f"{above / 'pyproject.toml'} belongs to another user" in result
        assert f"LEFTFOLD_TRUST={above}" in result
        assert "--app" in result
    assert not (above / "ran").exists()
    assert find_project().root == (mine if where == "above" else above)
    assert not find_project().written
    assert load_app("tests.cli.tower:app").name == "tower", "an App of one's own can be named"


@as_root
def test_a_project_of_another_user_is_run_where_it_is_trusted(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    above = mine.parents[1]
    os.chown(above / "pyproject.toml", STRANGER, -1)
    monkeypatch.setenv("LEFTFOLD_TRUST", f"/elsewhere{os.pathsep}{above}")
    assert find_project().apps == ("lured:app",)
    monkeypatch.chdir(above)
    assert find_project().apps == ("lured:app",)


@pytest.mark.parametrize("where", ["above", "here"])
def test_ones_own_project_is_run(mine: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    above = mine.parents[1]
    if where == "here":
        monkeypatch.chdir(above)
    with pytest.raises(ConfigurationError, match="lured has no App"):
        load_app()
    assert (above / "ran").exists()


@as_root
def test_private_servers_of_another_user_are_passed_over(mine: Path) -> None:
    file = mine.parents[1] / ".leftfold" / "servers.json"
    file.parent.mkdir(0o700)
    file.write_text('{"kafka": "theirs:1"}', "utf-8")
    os.seteuid(STRANGER)
    try:
        assert announced(mine, Environment()).kafka == ""
    finally:
        os.seteuid(0)


@as_root
def test_servers_that_another_user_announces_are_not_believed(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = mine.parents[1] / ".leftfold" / "servers.json"
    file.parent.mkdir()
    file.write_text('{"kafka": "trap:1"}', "utf-8")
    assert announced(mine, Environment()).kafka == "trap:1"
    os.chown(file, STRANGER, -1)
    assert announced(mine, Environment()).kafka == ""
    assert announced(file.parents[1], Environment()).kafka == ""
    monkeypatch.setenv("LEFTFOLD_TRUST", str(file.parents[1]))
    assert announced(mine, Environment()).kafka == "trap:1"


def test_one_user_for_several_parts_has_the_rights_of_all_of_them() -> None:
    (user,) = users_of([guild], ("client", "worker", "projector"), "svc")
    assert {right.role for right in user.rights} == {"client", "worker", "projector"}
    assert user.in_redis.endswith(redis_rules(["projector"]).partition("-@all")[2])
    assert user.in_redis.count(" &") == len(guild.views)


def test_servers_that_are_not_started_are_named_with_what_configures_them(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEFTFOLD_REDIS_URL", "redis://r")
    assert servers_to_start("k:9092", None) == frozenset()
    assert capsys.readouterr().err == (
        "kafka is configured by --kafka; none is started here\n"
        "redis is configured by LEFTFOLD_REDIS_URL; none is started here\n"
    )
