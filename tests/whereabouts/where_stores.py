"""Object stores and NFS servers for the cases, on the last node. Its link has a rate."""

from __future__ import annotations

import ctypes.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from network_nodes import limited
from support_bottlenecks_disks import missing as missing_fuse
from support_ledgers import until
from support_suite_of_cases import CannotRun
from where_places import MB, MBIT, done, fill, need
from where_rows import Lab, Setup

STORE_PORT, NFS_PORT = 9000, 2049
_GANESHA = """
NFS_CORE_PARAM {{ Protocols = 3,4; NFS_Port = {port}; Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false; }}
NFSv4 {{ Graceless = true; RecoveryBackend = fs; RecoveryRoot = {state}; }}
EXPORT {{ Export_Id = 1; Path = {path}; Pseudo = /export; Protocols = 3,4; Transports = TCP; SecType = sys;
         Access_Type = RW; Squash = none; FSAL {{ Name = VFS; }} }}
"""


def store(name: str, mbit: int, *, files: int, size: int = MB) -> Setup:
    """An object store on the last node. Its link has a rate."""

    def setup(lab: Lab) -> None:
        if not find_spec("moto") or not find_spec("flask"):
            raise CannotRun("needs moto[server], a Python package")
        node = lab.nodes[-1]
        url = f"http://{node.address()}:{STORE_PORT}"
        words = [sys.executable, "-c", "from moto.server import main; main()", "-H", "0.0.0.0", "-p", str(STORE_PORT)]
        _serve(lab, "moto", node.inside(*words))
        made = subprocess.run(
            lab.nodes[0].inside(sys.executable, "-c", _FILL, url, str(files), str(size)), capture_output=True, text=True
        )
        if made.returncode:
            raise CannotRun(f"the object store does not answer: {made.stderr}")
        lab.stack.enter_context(limited([node], 0, mbit * MBIT))
        lab.places[name] = f"{node.address()}:{STORE_PORT}"
        lab.arguments[name] = f"{url}/data/*{files}"
        del lab.places["eth0"]

    return setup


_FILL = """
import os, sys, time, urllib.error, urllib.request
url, files, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def put(path, data):
    request = urllib.request.Request(url + path, data, method="PUT")
    request.add_header("Content-Type", "application/octet-stream")
    request.add_header("x-amz-acl", "public-read")
    urllib.request.urlopen(request, timeout=20).close()
for attempt in range(200):
    try:
        put("/data", b"")
        break
    except OSError:
        time.sleep(0.1)
for number in range(files):
    put(f"/data/{number:04}", os.urandom(size))
"""


def mounted_store(name: str, of: str) -> Setup:
    """The bucket of an object store, mounted on the first node with rclone."""

    def setup(lab: Lab) -> None:
        if not shutil.which("rclone"):
            raise CannotRun("needs rclone")
        need(missing_fuse())
        at = lab.scratch / name
        at.mkdir()
        remote = f":s3,provider=Other,endpoint='http://{lab.places[of]}':data"
        words = ["rclone", "mount", remote, str(at), "--vfs-cache-mode=off", "--config=", "--dir-cache-time=1h"]
        words += ["--s3-access-key-id=x", "--s3-secret-access-key=x", "--allow-other"]
        # nsenter and not `ip netns exec`: the mount has to be seen from outside.
        enter = ["nsenter", f"--net=/run/netns/{lab.nodes[0].name}"]
        env = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        _serve(lab, "rclone", [*enter, *words], env)
        lab.stack.callback(subprocess.run, ["umount", "-l", str(at)], check=False)
        until(lambda: os.path.ismount(at))
        lab.places[name] = lab.arguments[name] = str(at)

    return setup


def nfs(name: str, mbit: int, *, files: int, size: int = MB, mounted: bool) -> Setup:
    """An NFS server. Not mounted, the job reads from it with libnfs, in user space."""

    def setup(lab: Lab) -> None:
        if mounted and "\tnfs4\n" not in Path("/proc/filesystems").read_text():
            raise CannotRun("needs a kernel with the client of NFS 4")
        if lacking := [tool for tool in ("ganesha.nfsd", "rpcbind") if not shutil.which(tool)]:
            raise CannotRun(f"needs {' and '.join(lacking)}")
        if not mounted and not ctypes.util.find_library("nfs"):
            raise CannotRun("needs libnfs")
        node, path, state = lab.nodes[-1], lab.scratch / "export", lab.scratch / "state"
        for made in (path, state, Path("/run/rpcbind"), Path("/run/ganesha")):
            made.mkdir()
        fill(path, files, size)
        config, log = lab.scratch / "ganesha.conf", lab.scratch / "ganesha.log"
        config.write_text(_GANESHA.format(port=NFS_PORT, path=path, state=state))
        _serve(lab, "rpcbind", node.inside("rpcbind", "-f", "-w"))
        words = [
            "ganesha.nfsd",
            "-F",
            "-f",
            str(config),
            "-L",
            str(lab.scratch / "ganesha.log"),
            "-p",
            "/run/ganesha.pid",
        ]
        _serve(lab, "ganesha", node.inside(*words))
        until(lambda: log.exists() and "NFS SERVER INITIALIZED" in log.read_text(), 20)
        lab.stack.enter_context(limited([node], 0, mbit * MBIT))
        if mounted:
            at = lab.scratch / name
            at.mkdir()
            source = f"{node.address()}:/export"
            done("nsenter", f"--net=/run/netns/{lab.nodes[0].name}", "mount", "-t", "nfs4", source, str(at))
            lab.stack.callback(subprocess.run, ["umount", "-l", str(at)], check=False)
            lab.places[name] = lab.arguments[name] = str(at)
        else:
            lab.places[name] = f"{node.address()}:{NFS_PORT}"
            lab.arguments[name] = f"nfs://{node.address()}{path}/*{files}"
        del lab.places["eth0"]

    return setup


def _serve(lab: Lab, name: str, words: Sequence[str], env: Mapping[str, str] | None = None) -> None:
    with open(lab.scratch / f"{name}.out", "wb") as log:
        server = lab.stack.enter_context(subprocess.Popen(words, env=env, stdout=log, stderr=log))
    lab.stack.callback(server.kill)
