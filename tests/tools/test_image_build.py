"""How the image is built (tools/image.py)."""

from __future__ import annotations

import image


def test_settings_of_pip_come_from_its_files_and_the_environment() -> None:
    listed = (
        ":env:.cert='/etc/own.crt'\n"
        "global.cert='/etc/ssl/certs/ca-certificates.crt'\n"
        "global.index-url='https://example.com/simple'\n"
        "global.timeout='20'\n"
        "install.timeout='60'\n"
        "wheel.timeout='90'\n"
    )
    assert image.pip_settings(listed) == {
        "cert": "/etc/own.crt",
        "index-url": "https://example.com/simple",
        "timeout": "60",
    }
    assert image.pip_settings("") == {}
