"""Which image runs this machine's own programs? One with nothing in it but the places where this machine's folders are mounted."""

from __future__ import annotations

import io
import tarfile

from compose_sim.engine.subprocesses import feed, try_output_of

HOST_IMAGE = "composesim-host:2"


def ensure_host_image() -> str:
    """The tag of the image, which is made where it is not here yet."""
    if try_output_of(["docker", "image", "inspect", "--format", "{{.Id}}", HOST_IMAGE])[0]:
        feed(["docker", "import", "-", HOST_IMAGE], _archive())
    return HOST_IMAGE


def _archive() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        # docker-init is put into /sbin, which therefore cannot be a link into the read-only /usr.
        for folder in ("dev", "etc", "home", "proc", "sbin", "sys", "tmp", "usr", "var"):
            entry = tarfile.TarInfo(folder)
            # The mode of /tmp is that of the memory mounted there, whatever that mount asks for: ordinary users write to it too.
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            archive.addfile(entry)
        for link in ("bin", "lib", "lib64"):
            entry = tarfile.TarInfo(link)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{link}"
            archive.addfile(entry)
    return buffer.getvalue()
