from __future__ import annotations

import json

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from agent import __version__
from deploy.dependencies import licences, lock
from deploy.dependencies.lock import DependencyError
from deploy.image import bill
from deploy.image.debian import Package

LICENSED = licences.collect(lock.read())
LOCKED = {one.locked.name: one.locked.version for one in LICENSED}
INSTALLED = {**LOCKED, "numawarden": __version__}
LIBC = Package("libc6", "2.41-12+deb13u4", "amd64", "a" * 64, "Package: libc6\n")


def test_the_bill_has_the_debian_packages_with_their_hashes_and_is_valid() -> None:
    text = bill.render([LIBC], LICENSED, INSTALLED)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    [found] = [one for one in json.loads(text)["components"] if one["name"] == "libc6"]
    expected = "pkg:deb/debian/libc6@2.41-12%2Bdeb13u4?arch=amd64&distro=debian-13"
    assert found["purl"] == expected
    assert found["hashes"] == [{"alg": "SHA-256", "content": "a" * 64}]
    [copyright_file] = found["externalReferences"]
    assert copyright_file["url"] == "file:///usr/share/doc/libc6/copyright"


def test_the_bill_leaves_out_what_the_images_python_does_not_need() -> None:
    installed = {name: one for name, one in INSTALLED.items() if name != "typing-extensions"}
    document = json.loads(bill.render([LIBC], LICENSED, installed))
    assert {one["name"] for one in document["components"]} == (
        {*LOCKED, "libc6"} - {"typing-extensions"}
    )


@pytest.mark.parametrize("strange", [{"sleeper": "1"}, {"click": "0.1"}, {"numawarden": "0"}])
def test_a_package_that_is_not_locked_does_not_get_into_the_image(strange: dict[str, str]) -> None:
    with pytest.raises(DependencyError, match=f"not locked: .*{next(iter(strange))}"):
        bill.render([LIBC], LICENSED, {**INSTALLED, **strange})
