"""Write the trace of a run: one JSON file, or a ZIP of one per node."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterable
from pathlib import Path

from compose_sim.core.view.profiles import Profile
from compose_sim.core.view.trace import chrome_trace, perfetto_files
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.engine.run_folder.safe_files import write_file
from compose_sim.view.reader import PageReader


def write_trace(path: Path, folder: RunFolder, profiles: Iterable[Profile] = ()) -> str:
    """Write the trace, as a ZIP if the file is named so, and return how to open it."""
    reader = PageReader(folder)
    try:
        message = reader.read()
    finally:
        reader.close()
    trace = chrome_trace(message, reader.sent, profiles)
    if path.suffix != ".zip":
        write_file(path, json.dumps(trace, ensure_ascii=False, separators=(",", ":")))
        return f"{len(message['spans'])} spans: open {path} at https://ui.perfetto.dev, which keeps it on this machine"
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in perfetto_files(trace).items():
            archive.writestr(name, text)
    write_file(path, target.getvalue())
    return f"{len(message['spans'])} spans: open {path} in Perfetto 58 or newer, such as https://ui.perfetto.dev"
