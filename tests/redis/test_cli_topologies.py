"""`leftfold status` and `leftfold doctor` say what kind of Redis there is, and what of it is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.shell import Shell
from tests.redis.cluster_set import ClusterSet
from tests.redis.sentinel_set import SentinelSet

pytestmark = pytest.mark.servers


def test_a_master_behind_sentinels_is_named(sentinels: SentinelSet, tmp_path: Path) -> None:
    shell, url = Shell(tmp_path), sentinels.settings.url
    (row,) = (row for row in shell("status", "--redis", url, "--json").rows() if row.get("name") == "redis")
    assert (row["topology"], row["state"]) == ("sentinel", "configured")
    found = {row["about"]: row for row in shell("doctor", "--redis", url, "--json").rows()}["redis"]
    assert found["well"], found
    assert f"rows (sentinels 127.0.0.1:{sentinels.sentinels[0].port}," in found["message"]
    assert f": master 127.0.0.1:{sentinels.master.port}: answered in" in found["message"]


def test_a_cluster_is_named_and_a_part_that_is_missing_is_told(cluster: ClusterSet, tmp_path: Path) -> None:
    shell, url = Shell(tmp_path), cluster.settings.url
    (row,) = (row for row in shell("status", "--redis", url, "--json").rows() if row.get("name") == "redis")
    assert (row["topology"], row["address"]) == ("cluster", url)
    found = {row["about"]: row for row in shell("doctor", "--redis", url, "--json").rows()}["redis"]
    assert found["well"], found
    assert "(cluster): 3 masters: answered in" in found["message"]
    with cluster.without(7):
        found = {row["about"]: row for row in shell("doctor", "--redis", url, "--json").rows()}["redis"]
        assert not found["well"]
        assert "1 of its 16384 slots have no owner" in found["message"]
        assert "redis-cli --cluster check 127.0.0.1" in found["message"]


def test_a_url_of_another_shape_is_refused_with_the_shapes_there_are(tmp_path: Path) -> None:
    told = Shell(tmp_path)("doctor", "--redis", "redis-sentinel://:s3cret@h:26379/0", "--json")
    found = {row["about"]: row for row in told.rows()}["redis"]
    assert "must look like redis://" in found["message"]
    assert "redis+sentinel://[user:password@]host[:26379][,host…]/service[/0]" in found["message"]
    assert "s3cret" not in told.out + told.err
