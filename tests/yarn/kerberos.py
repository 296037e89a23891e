"""A Kerberos realm on loopback: MIT's KDC, with principals in keytabs; and the library for SPNEGO, built once."""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final, Self

from tests.debian import require
from tests.integration.process import DIES_WITH_THIS, ROOT, free_port, wait_until

REALM: Final = "YARN.TEST"
ADDRESS: Final = "127.0.0.1"
_PACKAGES: Final = {
    "krb5kdc": "krb5-kdc",
    "kadmin.local": "krb5-admin-server",
    "kinit": "krb5-user",
    "kdb5_util": "krb5-kdc",
}


_BUILD_PACKAGES: Final = {"gcc": "gcc", "krb5-config": "libkrb5-dev", "python3-config": "python3-dev"}


def kerberos_library() -> Path:
    """The folder with httpx-gssapi, for PYTHONPATH; built against the system's Kerberos by the first run."""
    require(_BUILD_PACKAGES)
    lock = ROOT / "requirements" / "kerberos.txt"
    folder = ROOT / "build" / "kerberos" / hashlib.sha256(lock.read_bytes()).hexdigest()[:12]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as mutex:
        fcntl.flock(mutex, fcntl.LOCK_EX)  # Another worker may be at it.
        if not (folder / "complete").exists():
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet"]
            command = [*pip, "--require-hashes", "--no-deps", "--requirement", str(lock), "--target", str(folder)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
            assert done.returncode == 0, done.stderr
            (folder / "complete").touch()
    return folder


class Realm:
    """A KDC with its database in `folder`, as a context manager; `config` is the krb5.conf of its clients."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "krb5.conf"
        self._programs = require(_PACKAGES)
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.folder.mkdir()
        self.config.write_text(self._client_config("1d"))
        (self.folder / "kdc.conf").write_text(
            f"[kdcdefaults]\n kdc_listen = {ADDRESS}:{self._port}\n kdc_tcp_listen = {ADDRESS}:{self._port}\n"
            f"[realms]\n {REALM} = {{\n  database_name = {self.folder}/principals\n"
            f"  key_stash_file = {self.folder}/stash\n }}\n"
        )
        self._run("kdb5_util", "create", "-s", "-P", "master")
        log = (self.folder / "kdc.log").open("ab")
        with log:
            command = [*DIES_WITH_THIS, self._programs["krb5kdc"], "-n"]
            self._process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
        wait_until(self._listens)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(30)

    def client(self, principal: str, *, lifetime: str = "1d") -> dict[str, str]:
        """The variables of a process that logs in as this principal by a keytab; a ticket is valid for `lifetime`."""
        config = self.folder / f"{principal}.conf"
        config.write_text(self._client_config(lifetime))
        keytab = self.folder / f"{principal}.keytab"
        return {
            "KRB5_CONFIG": str(config),
            "KRB5_CLIENT_KTNAME": str(keytab if keytab.exists() else self.keytab(principal)),
            "KRB5CCNAME": f"FILE:{self.folder}/{principal}.tickets",
        }

    @property
    def environment(self) -> dict[str, str]:
        """Of the KDC and its administration."""
        variables = {"KRB5_CONFIG": str(self.config), "KRB5_KDC_PROFILE": str(self.folder / "kdc.conf")}
        return {**os.environ, **variables}

    def java_options(self) -> list[str]:
        """For a JVM that belongs to this realm; Hadoop reads Java's own configuration of Kerberos."""
        return [
            f"-Djava.security.krb5.conf={self.config}",
            "--add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
            "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
        ]

    def keytab(self, *principals: str) -> Path:
        """Add these principals; the file with their keys."""
        path = self.folder / f"{principals[0].replace('/', '-')}.keytab"
        for principal in principals:
            self._run("kadmin.local", "addprinc", "-randkey", principal)
            self._run("kadmin.local", "ktadd", "-k", str(path), principal)
        return path

    def _client_config(self, lifetime: str) -> str:
        return (
            f"[libdefaults]\n default_realm = {REALM}\n ticket_lifetime = {lifetime}\n dns_lookup_kdc = false\n"
            " dns_canonicalize_hostname = false\n rdns = false\n udp_preference_limit = 1\n"
            f"[realms]\n {REALM} = {{\n  kdc = {ADDRESS}:{self._port}\n }}\n"
        )

    def _run(self, program: str, *arguments: str) -> None:
        command = [self._programs[program], *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, (command, done.stdout, done.stderr)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((ADDRESS, self._port)) == 0
